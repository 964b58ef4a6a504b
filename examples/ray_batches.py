#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continues the prompts of JSONL files with Ray Data, on one machine or on all of a Ray cluster.

    pip install "ray[data]"
    python3 examples/ray_batches.py MODEL IN.jsonl OUT_FOLDER [--workers 2] [--cpus 8] [--max-tokens 32]

Each worker is a process that has the model once; Ray gives it batches as it becomes free, and starts
it again where it dies.  Results come in any order.  For a job over one large file that must go on
after any stop, `aquifer generate --shard` needs less: docs/shards.md.
"""
import argparse

import ray

import aquifer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=1, help="threads of each worker")
    parser.add_argument("--ray-cpus", type=int, default=None, help="CPUs that Ray is to count (default: all)")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--host-memory", default="2GiB", help="of each worker")
    args = parser.parse_args()

    ray.init(num_cpus=args.ray_cpus)
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if args.workers * args.cpus >= cpus:  # it would wait for ever
        parser.error(f"{args.workers} workers of {args.cpus} CPUs leave none of Ray's {cpus} for reading and writing")
    options = {"prompt": "prompt", "device": "cpu", "threads": args.cpus, "max_tokens": args.max_tokens,
               "max_total_tokens": 512, "host_memory": args.host_memory}
    data = ray.data.read_json(args.input, lines=True)
    data = data.map_batches(aquifer.Batch, fn_constructor_args=(args.model,), fn_constructor_kwargs=options,
                            batch_size=args.batch_size, num_cpus=args.cpus, concurrency=args.workers)
    data.write_json(args.output)


if __name__ == "__main__":
    main()
