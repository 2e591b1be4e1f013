"""What a profile of Nsight Compute holds, as bench.measure.nsight --profile writes it: at which problems, which counters.
All names of counters are those of Hopper and Ampere alike."""

PASSES = {"forward": [], "backward": ["--backward"]}
PROFILED = {"batch": 4, "heads": 32, "N": 4096, "d": 64}  # of the papers' grid, as in the tables of speed
# Where gains are predicted that nothing else shows: heads * d as above.
PREDICTED_AT = 32
# Where FlashAttention-1 has what it needs: short rows, and several heads for each multiprocessor. These stages, forward,
# without a mask.
MANY_HEADS = {"batch": 32, "heads": 32, "N": 512, "d": 64}
OF_MANY_HEADS = (10, 11)
MASKS = {"full": [], "causal": ["--causal"]}
# How busy each unit is, in percent of what it can do in the whole time of the kernel, idle multiprocessors included.
BUSY = {
    "issue slots": "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
    "tensor cores": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "fp32 units": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "integer units": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",  # max and comparisons, too
    "special functions": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",  # ex2
    "shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",  # L1 goes the same way
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
# The busiest of all units of either side, those that are not above included.
THROUGHPUT = {
    "SM throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
}
# How many blocks an SM could hold if this were all that limits it.
BLOCK_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "its number of warps": "launch__occupancy_limit_warps",
    "its number of blocks": "launch__occupancy_limit_blocks",
}
TIME = "gpu__time_duration.sum"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS, THREADS, BLOCKS = "launch__registers_per_thread", "launch__block_size", "launch__grid_size"
SHARED = ["launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic"]
WAVES = "launch__waves_per_multiprocessor"  # times that the grid fills the GPU
# Of the warps there are while an instruction is issued, those that this keeps waiting.
WAITING = {reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait")}
PROFILE = [TIME, *BUSY.values(), *THROUGHPUT.values(), DRAM_READ, DRAM_WRITTEN, OCCUPANCY, REGISTERS, *SHARED,
           THREADS, BLOCKS, WAVES, *BLOCK_LIMITS.values(), *WAITING.values()]
CLOCK = "sm__cycles_elapsed.avg.per_second"  # which older profiles have not
MEASURED = [*PROFILE, CLOCK]


def head_dim(profile):
    """Of profiles that do not say it, that of all stages."""
    return profile.get("d", PROFILED["d"])


def length(profile):
    """Of profiles that do not say it, that of all stages."""
    return profile.get("N", PROFILED["N"])


def problem_at(d):
    """PROFILED with this head dimension, and as many heads as leave heads * d as it is."""
    return {**PROFILED, "heads": PROFILED["heads"] * PROFILED["d"] // d, "d": d}


def pass_of(profile):
    """Of profiles that do not say it, the forward pass."""
    return profile.get("pass", "forward")
