"""What bench.report.machine_code reads from a disassembly, and that the READMEs say what the build's machine code has."""

import subprocess
import sys
import unittest
from pathlib import Path

from bench.report import machine_code
from common.course.registry import ROOT

SASS = """
\t\tFunction : _Z1aI13__nv_bfloat16Li64EE
        /*0000*/                   MUFU.EX2 R1, R1 ;
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*0020*/                   BAR.SYNC.DEFER_BLOCKING 0x2, 0x100 ;
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R56, R88, gdesc[UR8].tnspB, R56, gsb0 ;
        /*0050*/                   BAR.ARV 0x3, 0x100 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0070*/                   MUFU.EX2 R2, R2 ;
        /*0080*/              @!P0 BRA 0xa0 ;
        /*0090*/               @P1 MUFU.EX2 R3, R3 ;
        /*00a0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00b0*/               @P2 BRA 0x30 ;
        /*00c0*/               @P3 BRA 0x10 ;
        /*00d0*/                   EXIT ;
"""


BACKWARD = """
\t\tFunction : _Z1bI13__nv_bfloat16Li64EE
        /*0000*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR12], R24, gsb0 ;
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R56, gdesc[UR16], RZ, !UPT, gsb0 ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0040*/                   MUFU.EX2 R2, R2 ;
        /*0050*/                   HGMMA.64x64x16.F32.BF16 R88, R4, gdesc[UR8].tnspB, R88, gsb0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0070*/                   STSM.16.M88.4 [R3], R8 ;
        /*0080*/                   BAR.SYNC.DEFER_BLOCKING 0x1, 0x100 ;
        /*0090*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8].tnspA.tnspB, RZ, !UPT, gsb0 ;
        /*00a0*/                   HGMMA.64x64x16.F32.BF16 R120, R8, gdesc[UR8].tnspB, R120, gsb0 ;
        /*00b0*/                   REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR4][R12.64], R24 ;
        /*00c0*/               @P3 BRA 0x0 ;
"""


class Order(unittest.TestCase):
    def test_the_shortest_loop_that_multiplies_is_taken(self):
        (body,) = machine_code.functions(SASS).values()
        loop = machine_code.hot_loop(body)
        self.assertEqual(len(loop), 9)
        self.assertEqual(machine_code.told(machine_code.order(loop)),
                         "1 Q K^T, 1 P~ V, arrive, wait<1>, 2 exponentials, wait<0>")

    def test_products_that_have_a_in_the_same_place_are_told_apart_by_their_groups(self):
        (body,) = machine_code.functions(BACKWARD).values()
        loop = machine_code.hot_loop(body)
        self.assertEqual(machine_code.told(machine_code.order(loop, machine_code.BACKWARD)),
                         "2 S, 1 dP, wait<1>, 1 exponentials, 1 dV, wait<1>, 1 stores of dS, barrier, 1 dQ, 1 dK, "
                         "1 additions to dQ")
        one_of_each = [text for text in loop if not any(of in text for of in ("R56", "R120"))]
        self.assertTrue(machine_code.told(machine_code.order(one_of_each, machine_code.BACKWARD)).startswith(
            "2 S or dP, wait<1>, 1 exponentials, 1 dV or dK, "))

    def test_kernels_with_clusters_stand_beside_those_without(self):
        several = "".join(SASS.replace("Li64E", numbers) for numbers in ("Li64ELi2E", "Li128ELi1E", "Li64ELi1E"))
        found = machine_code.functions(several)
        loops = {d: machine_code.loops_of(found, d) for d in (64, 128, 256)}
        self.assertEqual({d: {blocks: len(of) for blocks, of in one.items()} for d, one in loops.items()},
                         {64: {1: 1, 2: 1}, 128: {1: 1}, 256: {}})
        self.assertEqual([len(loop) for loop in machine_code.loops_of(machine_code.functions(SASS), 64)[1]], [9])

    def test_a_loop_without_products_is_none(self):
        (body,) = machine_code.functions(SASS).values()
        self.assertIsNone(machine_code.hot_loop([one for one in body if "HGMMA" not in one[1]]))


def with_policies(build):
    """Whether stages 70 and 71 with the policy of plain attention are stages 29 and 38, instruction by instruction; and
    what is to be said of it."""
    stages = build / "stages/CMakeFiles/flashladder_stages.dir"
    for plain, policies in (("29_tuned", "70_policies"), ("38_tuned_backward", "71_policies_backward")):
        one, other = (machine_code.bodies(machine_code.disassembly(stages / f"{name}.cu.o")) for name in (plain, policies))
        if not one or one != other:
            return False, (f"{policies} has {(other - one).total()} of {other.total()} functions that are none of the "
                           f"{one.total()} of {plain}")
        print(f"{policies}: {other.total()} functions, each as in {plain}")
    return True, ""


def main():
    tests = unittest.TextTestRunner(verbosity=1).run(unittest.defaultTestLoader.loadTestsFromTestCase(Order))
    if not tests.wasSuccessful():
        return 1
    try:
        same, why = with_policies(Path(sys.argv[1]))
    except machine_code.Unavailable as reason:
        print(f"skipped: {reason}")
        return 77
    if not same:
        print(f"machine_code_test: {why}", file=sys.stderr)
        return 1
    done = subprocess.run([sys.executable, "-B", "-m", "bench.report.machine_code", "--check", "--build", sys.argv[1]],
                          cwd=ROOT)
    return done.returncode


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("machine_code_test: call it with the build folder")
    sys.exit(main())
