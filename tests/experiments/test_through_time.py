"""Backpropagation through time: plans and budgets change memory and time, and no bit of the gradients."""

from edgelearn.experiments.through_time import through_time


def test_gradients_are_equal_to_the_bit_and_budgets_hold(tmp_path):
    found = through_time((16, 64), units=20, examples=3, rounds=1)
    by = {(row.steps, row.plan): row for row in found.rows}
    for steps in (16, 64):
        assert {plan for length, plan in by if length == steps} == {
            "keep_all", "checkpoints", "square_root", "75%", "50%", "25%"
        }  # fmt: skip
        first = by[steps, "keep_all"]
        for share in (75, 50, 25):
            assert by[steps, f"{share}%"].stored <= share / 100 * first.stored
            assert by[steps, f"{share}%"].launches > first.launches
    assert all(row.same_bits for row in found.rows)
    growth = [by[64, plan].stored / by[16, plan].stored for plan in ("keep_all", "square_root")]
    assert growth[0] > 3.9 and growth[1] < 3.6
    found.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000
