# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one node, for as long as a test runs: munged, slurmctld and slurmd on ports and in a folder of their
own, started as root from Debian's slurm-wlm.  `why_not()` says why there is none here; `Slurm(folder)` starts one
and raises Unusable where it does not come up."""
import os
import secrets
import shutil
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
UP_S = 40


class Unusable(Exception):
    pass


def find(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def why_not():
    missing = [p for p in PROGRAMS if not find(p)]
    if missing:
        return "not installed: " + ", ".join(missing)
    return "its daemons are started as root" if os.geteuid() else None


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


CONFIG = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
SlurmUser=root
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
JobRequeue=1
KillWait=20
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=work Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=0
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    def __init__(self, folder, cpus=4):
        self.dir = folder
        self.daemons = []
        self.host = socket.gethostname().split(".")[0]
        control, node = free_ports(2)
        for name in ("state", "spool"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        self.config = os.path.join(folder, "slurm.conf")
        with open(self.config, "w", encoding="utf-8") as f:
            f.write(CONFIG.format(host=self.host, control=control, node=node, dir=folder, cpus=cpus))
        self.env = dict(os.environ, SLURM_CONF=self.config)
        for name in list(self.env):  # of a job that this may run in
            if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF":
                del self.env[name]
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _path(self, name):
        return os.path.join(self.dir, name)

    def _daemon(self, *words):
        log = open(self._path(os.path.basename(words[0]) + ".out"), "wb")
        self.daemons.append(subprocess.Popen(words, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        log.close()

    def _start(self):
        with open(self._path("munge.key"), "wb") as f:
            os.fchmod(f.fileno(), 0o400)
            f.write(secrets.token_bytes(128))
        os.chmod(self.dir, 0o755)
        self._daemon(find("munged"), "--foreground", "--force", "--key-file", self._path("munge.key"), "--socket",
                     self._path("munge.socket"), "--pid-file", self._path("munged.pid"), "--log-file",
                     self._path("munged.log"), "--seed-file", self._path("munged.seed"), "--num-threads", "2")
        self._wait("munged", lambda: os.path.exists(self._path("munge.socket")))
        self._daemon(find("slurmctld"), "-D", "-c", "-f", self.config)
        self._daemon(find("slurmd"), "-D", "-f", self.config, "-N", self.host)
        self._wait("a node that is idle", lambda: self.said("sinfo", "-h", "-p", "work", "-o", "%T").strip() == "idle")

    def _wait(self, what, done):
        until = time.monotonic() + UP_S
        while time.monotonic() < until:
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise Unusable(f"{daemon.args[0]} ended with {daemon.returncode}: {self.last_words()}")
            if done():
                return
            time.sleep(0.2)
        raise Unusable(f"no {what} within {UP_S} s: {self.last_words()}")

    def last_words(self):
        words = []
        for name in ("munged.out", "munged.log", "slurmctld.out", "slurmd.out"):
            if os.path.exists(self._path(name)):
                with open(self._path(name), encoding="utf-8", errors="replace") as f:
                    words += [line.strip() for line in f if "error" in line.lower()][-3:]
        return "; ".join(words) or "nothing said"

    def said(self, program, *words):
        done = subprocess.run([find(program), *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=30)
        return done.stdout.decode(errors="replace")

    def submit(self, *words):
        """The job's number."""
        said = self.said("sbatch", "--parsable", *words).strip()
        if not said.isdigit():
            raise AssertionError("sbatch: " + said)
        return int(said)

    def tasks(self, job):
        """{task: state} of those that are not over."""
        lines = self.said("squeue", "-h", "-r", "-j", str(job), "-o", "%K %T").split("\n")
        return {int(k): state for k, state in (line.split() for line in lines if line.count(" ") == 1)
                if k.isdigit()}

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = []
