"""Reading a machine out of `/proc` and `/sys`: real layouts of several kinds, cut short."""

from pathlib import Path

import pytest

from ridgeline.hardware.machine import Machine, mac_machine, this_machine

XEON = """\
processor\t: {number}
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
physical id\t: {socket}
siblings\t: 4
core id\t\t: {core}
cpu cores\t: 2
flags\t\t: fpu fma f16c avx2 avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_int8

"""
GRAVITON = """\
processor\t: {number}
BogoMIPS\t: 2000.00
Features\t: fp asimd asimdhp asimddp sve bf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40

"""
MEMORY = "MemTotal:       16384 kB\nMemFree:        1024 kB\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    fields = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}
    return {f"{folder}/{name}": f"{value}\n" for name, value in fields.items()}


def read(root: Path, num_affinity_cores: int = 64) -> Machine:
    return this_machine(root, num_affinity_cores=num_affinity_cores, gpus=[])


@pytest.fixture
def xeon(tmp_path: Path) -> Path:
    """Two sockets, two cores each, two threads per core."""
    places = [(number, number % 4 // 2, number % 2) for number in range(8)]
    blocks = [XEON.format(number=n, socket=socket, core=core) for n, socket, core in places]
    write(tmp_path, {"proc/cpuinfo": "".join(blocks), "proc/meminfo": MEMORY})
    for cpu in range(4):
        pair = f"{cpu},{cpu + 4}"
        socket = "0-1,4-5" if cpu < 2 else "2-3,6-7"
        write(tmp_path, cache(cpu, 0, 1, "Data", "48K", pair))
        write(tmp_path, cache(cpu, 2, 2, "Unified", "2048K", pair))
        write(tmp_path, cache(cpu, 3, 3, "Unified", "105M", socket))
    return tmp_path


def test_sockets_cores_and_threads_are_told_apart(xeon: Path) -> None:
    cpu = read(xeon).cpu
    assert cpu.model == "Intel(R) Xeon(R) Platinum 8480+"
    assert (cpu.num_sockets, cpu.num_physical_cores, cpu.num_logical_cores) == (2, 4, 8)
    assert cpu.num_usable_cores == 8


def test_the_isa_that_matters_is_listed(xeon: Path) -> None:
    isa = read(xeon).cpu.isa
    assert {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"} <= set(isa)
    assert "neon" not in isa


def test_shared_caches_are_counted_once(xeon: Path) -> None:
    caches = {cache.level: cache for cache in read(xeon).cpu.caches}
    assert (caches[1].size_bytes, caches[1].num_instances) == (48 * 2**10, 4)
    assert (caches[3].size_bytes, caches[3].num_instances) == (105 * 2**20, 2)
    assert caches[3].total_bytes == 210 * 2**20


def test_affinity_limits_the_usable_cores(xeon: Path) -> None:
    assert read(xeon, num_affinity_cores=3).cpu.num_usable_cores == 3


def test_memory_is_read_in_bytes(xeon: Path) -> None:
    machine = read(xeon)
    assert machine.memory_bytes == 16 * 2**20
    assert machine.memory_limit_bytes is None


def test_a_cgroup_v2_quota_of_a_parent_binds(xeon: Path) -> None:
    write(
        xeon,
        {
            "proc/self/cgroup": "0::/kubepods/pod1/box\n",
            "sys/fs/cgroup/kubepods/pod1/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/kubepods/pod1/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/kubepods/pod1/box/memory.max": "8388608\n",
        },
    )
    machine = read(xeon)
    assert machine.cpu.cgroup_cores == 2.5
    assert machine.cpu.num_usable_cores == 2
    assert machine.memory_limit_bytes == 8 * 2**20


def test_inside_a_container_the_mount_s_root_is_the_group(xeon: Path) -> None:
    write(
        xeon,
        {
            "proc/self/cgroup": "0::/docker/0123abc\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
    )
    machine = read(xeon)
    assert machine.cpu.cgroup_cores == 0.5
    assert machine.cpu.num_usable_cores == 1
    assert machine.memory_limit_bytes is None


def test_a_cgroup_v1_quota_binds(xeon: Path) -> None:
    write(
        xeon,
        {
            "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    machine = read(xeon)
    assert machine.cpu.cgroup_cores == 4.0
    assert machine.cpu.num_usable_cores == 4
    assert machine.memory_limit_bytes is None


def test_an_arm_server_has_a_core_name_and_its_isa(tmp_path: Path) -> None:
    blocks = [GRAVITON.format(number=number) for number in range(4)]
    write(tmp_path, {"proc/cpuinfo": "".join(blocks), "proc/meminfo": MEMORY})
    cpu = read(tmp_path).cpu
    assert cpu.model == "Arm Neoverse-V1"
    assert cpu.isa == ["neon", "fp16", "dotprod", "bf16", "i8mm", "sve"]
    assert (cpu.num_sockets, cpu.num_physical_cores, cpu.num_logical_cores) == (1, 4, 4)


def test_an_arm_board_is_named_by_its_device_tree(tmp_path: Path) -> None:
    block = GRAVITON.format(number=0).replace("0xd40", "0xd42")
    board = "NVIDIA Jetson AGX Orin Developer Kit\0"
    write(
        tmp_path,
        {
            "proc/cpuinfo": block,
            "proc/meminfo": MEMORY,
            "sys/firmware/devicetree/base/model": board,
        },
    )
    assert read(tmp_path).cpu.model == "Arm Cortex-A78AE (NVIDIA Jetson AGX Orin Developer Kit)"


def test_an_empty_tree_is_a_machine_of_one_core(tmp_path: Path) -> None:
    machine = read(tmp_path)
    assert machine.cpu.num_usable_cores == 1
    assert machine.cpu.caches == []
    assert machine.memory_bytes == 0


def test_a_mac_is_described_by_sysctl() -> None:
    answers = {
        "machdep.cpu.brand_string": "Apple M3 Max",
        "hw.physicalcpu": "14",
        "hw.logicalcpu": "14",
        "hw.memsize": str(36 * 2**30),
        "hw.l1dcachesize": "65536",
        "hw.l2cachesize": "4194304",
        "hw.optional.AdvSIMD": "1",
        "hw.optional.neon": "1",
        "hw.optional.arm.FEAT_BF16": "1",
    }
    machine = mac_machine(lambda name: answers.get(name, ""), [], [])
    assert machine.cpu.model == "Apple M3 Max"
    assert machine.cpu.num_usable_cores == 14
    assert machine.cpu.isa == ["neon", "bf16"]
    assert [cache.level for cache in machine.cpu.caches] == [1, 2]
    assert machine.memory_bytes == 36 * 2**30


def test_the_machine_that_runs_this_test_is_understood() -> None:
    machine = this_machine(gpus=[])
    assert machine.cpu.model
    assert 1 <= machine.cpu.num_usable_cores <= machine.cpu.num_logical_cores
    assert machine.memory_bytes > 2**28
