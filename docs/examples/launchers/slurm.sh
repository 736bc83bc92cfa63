#!/bin/bash
# A supervised run on four nodes: `sbatch slurm.sh`. Checkpoints are on a file system that all nodes mount.
#SBATCH --job-name=big
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=TERM@120
# --no-kill: a node that fails does not end the job: the other supervisors go on. --requeue: after a preemption, or if
# the node of this script fails, the job starts again, and the run resumes. --signal: two minutes before the time limit,
# the state is saved and the run ends in order.
set -euo pipefail
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export COORDINATOR=$first:9876

# --kill-on-bad-exit=0 and --wait=0: a supervisor that ends does not end those of the other nodes.
srun --no-kill --kill-on-bad-exit=0 --wait=0 bash -c 'exec shardtui engine --supervise \
  --run big --model gpt2-xl --preset fsdp --checkpoint-dir /shared/runs --checkpoint-every 500 --steps 100000 \
  --min-processes 2 --wait-for-host 120 --fallback fsdp-tp2,fsdp-tp4 \
  --coordinator "$COORDINATOR" --num-processes "$SLURM_NTASKS" --process-id "$SLURM_PROCID"'
