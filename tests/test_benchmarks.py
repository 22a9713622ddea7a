"""The benchmark suite: its arithmetic, its pages, and that what it measures is there. No time is asserted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from suite import judge, machine, pages, picture, results, roce, services
from suite.cases import CASES, LADDER, OURS, ROWS, Row, U
from suite.pair import pair
from suite.streams import CONFIGS

if TYPE_CHECKING:
    from pathlib import Path

KEPT = json.loads(results.KEPT.read_text())


def test_the_readme_shows_the_kept_results() -> None:
    readme = results.README.read_text()
    assert pages.filled(readme, pages.readme(KEPT)) == readme
    assert f"]({results.PICTURE.relative_to(results.ROOT)})" in readme


def test_the_page_shows_the_kept_results() -> None:
    page = results.PAGE.read_text()
    assert pages.filled(page, pages.ladders(KEPT)) == page


def test_the_page_shows_the_kept_results_over_rdma() -> None:
    kept = json.loads(roce.KEPT.read_text())
    text = roce.PAGE.read_text()
    assert pages.filled(text, roce.page(kept), roce.BEGIN) == text
    assert all(set(figures) == set(roce.ROWS) for figures in kept["rounds"])


def test_the_page_shows_the_kept_results_of_applications() -> None:
    kept = json.loads(services.KEPT.read_text())
    text = services.PAGE.read_text()
    assert pages.filled(text, services.page(kept), services.BEGIN) == text
    for figures in kept["rounds"]:
        assert {case.key: set(case.transports) for case in services.CASES} == {
            key: set(each) for key, each in figures.items()
        }


@pytest.mark.parametrize(("ours", "missed"), [(1.0, 0), (0.99, 3)])
def test_the_gate_of_applications_is_of_the_rounds_ratios(ours: float, missed: int) -> None:
    found = []
    for noise in (1.0, 3.0, 0.2):
        figures = {"per_s": noise, "p99_us": 1.0}
        case = dict.fromkeys((services.TCP, services.UNIX, services.NO_SPIN, services.LONG_SPIN), figures)
        found.append({each.key: case | {services.OURS: figures | {"per_s": ours * noise}} for each in services.CASES})
    # A round that another program has disturbed does not count.
    found.append({key: case | {services.OURS: {"per_s": 0.01, "p99_us": 1.0}} for key, case in found[0].items()})
    assert len(services.faults({"rounds": found})) == missed
    for load, judged in ((services.QUIET, True), (services.QUIET + 0.1, False)):
        shown = services.table({"rounds": found, "load": load})
        assert (shown.count("1.00x missed" if missed else "1.00x held"), shown.count("not judged")) == (
            (3, 0) if judged else (0, 3)
        )


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((10.0, 5.0), []),
        ((10.1, 5.0), ["the round trip takes longer than that of kernel AF_SMC"]),
        ((10.0, 4.9), ["the stream is slower than that of kernel AF_SMC"]),
        (None, ["not measured: no device"]),
    ],
)
def test_gates_over_rdma_are_of_the_rounds_ratios(ours: tuple[float, float] | None, said: list[str]) -> None:
    found = []
    for noise in (1.0, 3.0, 0.2):
        figures = {roce.KERNEL: {"rtt_us": 10.0 * noise, "mb_s": 5.0 / noise}}
        if ours is not None:
            figures[roce.OURS] = {"rtt_us": ours[0] * noise, "mb_s": ours[1] / noise}
        found.append(figures)
    # A round that another program has disturbed does not count.
    found.append({name: {"rtt_us": 1e6 if name == roce.OURS else 1.0, "mb_s": 1.0} for name in found[0]})
    wrong = roce.faults({"rounds": found, "missing": {roce.OURS: "no device"}})
    assert wrong == [f"{roce.OURS}: {text}" for text in said]


def test_the_picture_is_of_the_kept_results() -> None:
    assert picture.drawn(KEPT) == results.PICTURE.read_text()


def test_the_kept_results_have_every_row() -> None:
    assert [verdict.row for verdict in judge.verdicts(KEPT)] == list(ROWS)


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- figures"):
        pages.filled("text", "figures")


def test_every_row_is_measured() -> None:
    cases = {case.key: case for case in CASES}
    assert len(cases) == len(CASES)
    assert len({row.key for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.subject in cases[row.case].transports, row.title
        assert row.sense == "value" or row.reference in cases[row.case].transports, row.title
    assert len({case.key for case in LADDER}) == len(LADDER)


def rounds(*ours: float, theirs: float = 10.0) -> list[dict[str, Any]]:
    return [{"probe_us": 0.3, str(OURS): {"f": one}, str(U): {"f": theirs}} for one in ours]


@pytest.mark.parametrize(
    ("row", "ratio"),
    [
        (Row("", "", "f", "gain", better="low"), 5.0),
        (Row("", "", "f", "gain", better="high"), 0.2),
        (Row("", "", "f", "cost"), 0.2),
        (Row("", "", "f", "value", scale=0.5), 1.0),
    ],
    ids=lambda value: value.sense if isinstance(value, Row) else "",
)
def test_ratios_are_medians_of_the_rounds(row: Row, ratio: float) -> None:
    assert judge.judged(row, rounds(1.0, 2.0, 100.0)) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("sense", "runs", "gate", "word"),
    [
        ("gain", (1.0, 3.0, 2.0), 3, "HELD"),
        ("gain", (1.0, 2.9, 2.0), 3, "MISSED"),
        ("cost", (3.0, 1.0, 2.0), 1, "HELD"),
        ("cost", (3.0, 1.1, 2.0), 1, "MISSED"),
    ],
)
def test_the_best_run_is_held_to_the_gate(
    monkeypatch: pytest.MonkeyPatch, sense: Any, runs: tuple[float, ...], gate: float, word: str
) -> None:
    row = Row("row", "case", "f", sense, gate, None, better="high")
    monkeypatch.setattr(judge, "ROWS", (row,))
    found = {"runs": [{"case": judge.summary("case", rounds(10 * ratio))} for ratio in runs]}
    (verdict,) = judge.verdicts(found)
    assert (verdict.gate, verdict.goal) == (word, "-")
    assert verdict.runs == pytest.approx(runs)
    assert verdict.best == pytest.approx(min(runs) if sense == "cost" else max(runs))


def written(path: Path, factor: float = 1.0, *, without: str = "") -> Path:
    """What pytest-benchmark would have written: the kept run again, our share of each ratio times `factor`."""
    benchmarks = []
    for key, case in KEPT["runs"][0].items():
        ratios = {row.key: case["ratios"][row.key] for row in ROWS if row.case == key}
        for row in ROWS:
            if row.case == key and row.gate is not None:
                ratios[row.key] = row.gate * (factor if row.sense == "gain" else 1 / factor)
        if key != without:
            benchmarks.append({"extra_info": {**case, "ratios": ratios, "case": key, "machine": KEPT["machine"]}})
    path.write_text(json.dumps({"datetime": "2026-01-01T00:00:00", "benchmarks": benchmarks}))
    return path


@pytest.mark.parametrize(
    ("factor", "without", "status", "said"),
    [(1.0, "", 0, "gates: 0 missed"), (0.99, "", 1, "MISSED"), (1.0, "set-up", 2, "not measured: connections set up")],
)
def test_a_missed_gate_is_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, without: str, status: int, said: str
) -> None:
    run = written(tmp_path / "run.json", factor, without=without)
    assert results.main([str(run), "--into", str(tmp_path / "results.json")]) == status
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "blocking"])
def test_a_pair_measures(kind: str) -> None:
    """Each work once, as short as it can be; that bytes arrived and by which path is checked within."""
    overs = ["tcp", "unix", *(["smcfast"] if kind == "blocking" else CONFIGS)]
    cpus = machine.cpus()
    with pair(kind, overs, cpus or (None, None)) as both:
        for over in overs:
            assert both.measure(over, "echo", size=64, seconds=0.01)["p50_us"] > 0
            assert both.measure(over, "stream", chunk=100, seconds=0.01)["bytes_per_s"] > 0
        if kind == "blocking":
            return
        for over in ("smcfast", "tcp"):
            assert both.measure(over, "many", size=64, seconds=0.01, connections=3)["messages_per_s"] > 0
            assert both.measure(over, "paced", size=64, seconds=0.01, interval=0.001)["cpu_us"] > 0
            assert both.measure(over, "stream", chunk=100, seconds=0.01, ticker=True)["late_there_us"] >= 0
            assert both.measure(over, "cycles", count=2)["per_s"] > 0
            assert both.measure(over, "connects", count=2)["per_s"] > 0
            assert "memory_bytes" in both.measure(over, "hold", count=2)
        assert both.rest(0.01) >= 0
        assert cpus is None or both.probe() > 0
