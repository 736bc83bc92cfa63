#!/bin/bash
# A supervised run over ssh: `bash ssh.sh host-0 host-1 host-2 host-3`, the same hosts in the same order every time.
# Run it again to start the supervisor of a host that was restarted: where one runs, a second one is refused.
set -euo pipefail
hosts=("$@")
for id in "${!hosts[@]}"; do
  ssh "${hosts[id]}" "nohup shardtui engine --supervise \
    --run big --model gpt2-xl --preset fsdp --checkpoint-dir /shared/runs --checkpoint-every 500 --steps 100000 \
    --min-processes 2 --fallback fsdp-tp2,fsdp-tp4 \
    --coordinator ${hosts[0]}:9876 --num-processes ${#hosts[@]} --process-id $id \
    > big.log 2>&1 < /dev/null &"
done
