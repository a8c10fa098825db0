from edgelearn.runtime.kernels import for_sm_90a

PTX = b""".version 9.0
.target sm_90, texmode_independent
// a comment
\t// begin inline asm
\t//sm_90a: wgmma.fence.sync.aligned;
\t// end inline asm
"""


def test_instructions_replace_their_comments():
    assert (
        for_sm_90a(PTX)
        == b""".version 9.0
.target sm_90a, texmode_independent
// a comment
\t// begin inline asm
\twgmma.fence.sync.aligned;
\t// end inline asm
"""
    )


def test_other_targets_stay():
    assert for_sm_90a(b".target sm_80\n.target sm_90a\n") == b".target sm_80\n.target sm_90a\n"
