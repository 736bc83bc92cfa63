#!/bin/bash
# A supervised run on all hosts of a TPU slice: `bash tpu-vm.sh POD ZONE`. Run it again once a host was repaired: where a
# supervisor runs, a second one is refused. /mnt/runs is a Filestore share that all hosts mount. A slice computes with
# all of its hosts or not at all: so there is no --min-processes, and the others wait for the one that is lost.
set -euo pipefail
pod=$1 zone=$2
IFS=';' read -ra hosts <<< "$(gcloud compute tpus tpu-vm describe "$pod" --zone "$zone" \
  --format='value(networkEndpoints[].ipAddress)')"

gcloud compute tpus tpu-vm ssh "$pod" --zone "$zone" --worker=all --command "
  id=\$(curl -s -H 'Metadata-Flavor: Google' \
    http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number)
  nohup shardtui engine --supervise \
    --run big --model gpt2-xl --preset fsdp --checkpoint-dir /mnt/runs --checkpoint-every 500 --steps 100000 \
    --coordinator ${hosts[0]}:9876 --num-processes ${#hosts[@]} --process-id \$id \
    > big.log 2>&1 < /dev/null &"
