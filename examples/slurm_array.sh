#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A Slurm job array that shares the records of one file; each task has a share and a results file.
#
#     sbatch --array=0-7 --cpus-per-task=16 --mem=64G examples/slurm_array.sh FOLDER \
#         --model DIR --input prompts.jsonl [other options of generate]
#     aquifer status FOLDER/shard-*.jsonl
#     aquifer merge results.jsonl FOLDER/shard-*.jsonl
#
# FOLDER, the model and the input are where every node sees them.  A task that is preempted,
# requeued or killed goes on where it was when it starts again; one that meets its time limit
# requeues itself.  Ids of the array must be in equal steps (0-7, 1-8, 0-14:2).
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u

aquifer=${AQUIFER:-aquifer}
if [ $# -lt 1 ] || [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    echo "usage: sbatch --array=0-N $0 FOLDER options of aquifer generate" >&2
    exit 1
fi
folder=$1
shift
mkdir -p "$folder"

# Results are safe at any time; this gives the pass that is under way the time to end (20 s).
child=
again=
end_run() {
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
trap 'again=1; end_run' USR1 # the time limit is near
trap end_run TERM            # preempted, requeued or cancelled: Slurm knows what comes next

"$aquifer" generate --shard slurm --output "$folder/shard-$SLURM_ARRAY_TASK_ID.jsonl" "$@" &
child=$!
wait "$child"
status=$?
while kill -0 "$child" 2>/dev/null; do # a signal ends a wait, not the run
    wait "$child"
    status=$?
done
wait "$child" # of a run that ended while a signal was handled
known=$?
[ "$known" = 127 ] || status=$known

if [ -n "$again" ] && [ "$status" = 130 ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
# Records that gave errors have their lines, too: the share is done.
[ "$status" = 3 ] && status=0
exit "$status"
