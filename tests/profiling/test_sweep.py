"""The sweep divides every moment of a device once."""

from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.profiling.timeline import Activity, Rank, sweep

TIMES = st.tuples(st.integers(-5, 30), st.integers(0, 10))
ACTIVITIES = st.lists(
    st.builds(
        lambda time, rank, key: Activity(time[0], time[0] + time[1], rank, f"{rank.name}{key}"),
        TIMES,
        st.sampled_from(Rank),
        st.sampled_from("ab"),
    ),
    max_size=12,
)


@given(ACTIVITIES)
def test_each_moment_goes_to_the_activities_of_the_first_rank(activities: list[Activity]) -> None:
    swept = sweep(activities, (0, 20))
    counted: dict[tuple[str, Rank], float] = {}
    hidden: dict[str, int] = {}
    idle = 0
    for moment in range(20):
        now = {(each.rank, each.key) for each in activities if each.begin <= moment < each.end}
        if not now:
            idle += 1
            continue
        first = min(rank for rank, _ in now)
        chosen = [key for rank, key in now if rank == first]
        for key in chosen:
            counted[key, first] = counted.get((key, first), 0) + 1 / len(chosen)
        if first == Rank.WORK:
            for key in {key for rank, key in now if rank in (Rank.EXPOSED, Rank.WAITING)}:
                hidden[key] = hidden.get(key, 0) + 1
    assert {key: round(time, 9) for key, time in swept.counted.items()} == {
        key: round(time, 9) for key, time in counted.items()
    }
    assert dict(swept.hidden) == hidden
    assert sum(end - begin for begin, end in swept.gaps) == idle
    assert round(sum(swept.counted.values()) + idle, 6) == 20
