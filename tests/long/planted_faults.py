"""Faults of the product, each of which a test has to find: `python tests/long/planted.py` puts them in.

The first ones are defects that CHANGELOG.md names as mended: they are put back. A fault changes one place, and is such
that the product still starts.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One mistake."""

    name: str
    """What goes wrong for the user."""
    file: str
    """The file that has it, from the root of the repository."""
    old: str
    """What is replaced; the file has it once."""
    new: str
    near: tuple[str, ...]
    """Files below tests/ that are likely to find it."""
    is_mended: bool = False
    """Whether CHANGELOG.md names it as mended."""


MENDED = [
    Fault(
        "a notice whose time is over before it is drawn keeps the UI busy for ever",
        "tui/notices.py",
        "return max(super().time_left, MIN_SECONDS)",
        "return super().time_left",
        ("tui/test_keys.py",),
    ),
    Fault(
        "a click on a command that is no longer listed ends the UI",
        "tui/palette.py",
        'if event.style.meta.get("option", -1) < self.option_count:',
        'if "option" in event.style.meta:',
        ("tui/test_keys.py",),
    ),
    Fault(
        "a collective in which every device sends to itself is listed",
        "engine/hlo/device_groups.py",
        "return [pair for pair in listed if pair[0] != pair[1]]",
        "return listed",
        ("hlo/test_collectives.py",),
    ),
    Fault(
        "an asynchronous collective that a loop carries on is counted once a round",
        "engine/hlo/overlap.py",
        "return targets is not None and START not in targets and",
        "return targets is not None and DONE in targets and",
        ("hlo/test_overlap.py",),
    ),
    Fault(
        "a host without memory has a good checkpoint set aside",
        "engine/distributed/outcomes.py",
        '= ("failed", "damaged", "refused", "done")',
        '= ("damaged", "failed", "refused", "done")',
        ("distributed/test_outcomes.py",),
    ),
    Fault(
        "a process that a model forked keeps an ended run alive",
        "engine/wire/lock.py",
        'return self.where != "gone"',
        "return self.pid != 0",
        ("wire/test_lock.py",),
    ),
    Fault(
        "a signal after the end of a run changes its supervisor's exit code",
        "engine/supervision/engine.py",
        "signal.signal(number, signal.SIG_IGN)",
        "signal.signal(number, signal.SIG_DFL)",
        ("distributed/test_supervision.py",),
    ),
    Fault(
        "a digest leaves out half of the bits of 64-bit elements",
        "engine/program/digest.py",
        "return lax.bitcast_convert_type(x, U32)",
        "return lax.bitcast_convert_type(x, U32)[..., 0]",
        ("program/test_digest.py",),
    ),
    Fault(
        "a wrong value under [overrides] hides the other problems of a preset",
        "engine/spec/preset_reader.py",
        'globs = msgspec.convert(tables.get("overrides", {}), dict[str, Any])',
        "globs = msgspec.convert(tables, PresetFile).overrides",
        ("spec/test_preset.py",),
    ),
    Fault(
        "between two attempts a viewer says that the run has crashed",
        "tui/client/engine_client.py",
        "is_between = is_supervised and not self._engine and not holder",
        "is_between = is_supervised and bool(self._engine) and not holder",
        ("tui/test_engine_client.py",),
    ),
    Fault(
        "other commands come before a stop",
        "engine/wire/inbox.py",
        "        if self.stop_requested_at is not None:\n            return [Stop()]",
        "        if self.stop_requested_at is not None and not self._waiting:\n            return [Stop()]",
        ("wire/test_inbox.py",),
    ),
    Fault(
        "a plan that waits for other plans says that it compiles",
        "tui/cli/plan.py",
        'doing = "waiting for other plans to compile" if planner.is_waiting else "compiling"',
        'doing = "compiling"',
        ("tui/test_planner.py",),
    ),
    Fault(
        "compilations of several plans have more cores than there are",
        "engine/planning/compilers.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        ("planning/test_compilers.py",),
    ),
]
OTHERS = [
    Fault(
        "a switch's receipt says equal digests without comparing them",
        "engine/program/reshard.py",
        "return np.array_equal(self.before, self.after)",
        "return self.before.shape == self.after.shape",
        ("program/test_reshard.py",),
    ),
    Fault(
        "the worst checkpoint is kept in place of the best",
        "engine/checkpoint/directory.py",
        "best = min(found, key=lambda info: info.rank)",
        "best = max(found, key=lambda info: info.rank)",
        ("checkpoint/test_checkpoint.py",),
    ),
    Fault(
        "a host that comes later decides once more who trains",
        "engine/supervision/rendezvous.py",
        "os.link(new, self._attempt(decision.number))",
        "os.replace(new, self._attempt(decision.number))",
        ("distributed/test_rendezvous.py",),
    ),
    Fault(
        "a value that one process has sealed is taken for that of another",
        "engine/distributed/seal.py",
        'len(key).to_bytes(4, "big") + key.encode() + value, "sha256")',
        'value, "sha256")',
        ("distributed/test_seal.py",),
    ),
    Fault(
        "a file that could not be written is left behind",
        "engine/base/atomic_write.py",
        "        with contextlib.suppress(OSError):\n            new.unlink()\n        raise\n",
        "        raise\n",
        ("base/test_atomic_write.py",),
    ),
    Fault(
        "an alternative of a rule takes a mesh axis that splits another dim",
        "engine/parallel/rules.py",
        "        taken.update(dims[-1].axes)\n",
        "",
        ("spec/test_alternatives.py",),
    ),
    Fault(
        "in ring attention queries see the wrong chunk of a neighbour's keys",
        "engine/models/ring_attention.py",
        "is_first = _index(axes) >= step",
        "is_first = _index(axes) > step",
        ("models/test_ring_attention.py",),
    ),
    Fault(
        "the last slot of each expert stays empty",
        "engine/models/experts.py",
        "(jnp.cumsum(order, axis=1) - order) * order",
        "jnp.cumsum(order, axis=1) * order",
        ("models/test_mixture.py",),
    ),
    Fault(
        "a part of the header of a token file is read as tokens",
        "engine/data/source.py",
        "return Shard(path, 4 * HEADER_WORDS, tokens), dtype",
        "return Shard(path, HEADER_WORDS, tokens), dtype",
        ("data/test_token_files.py",),
    ),
    Fault(
        "a collective in a loop of unknown length is counted once",
        "engine/explain/transfers.py",
        "known = None if times is None or trips is None else times * (trips + runs)",
        "known = None if times is None else times * ((trips or 1) + runs)",
        ("explain/test_explain.py",),
    ),
    Fault(
        "the clocks of two hosts are shifted apart in place of together",
        "engine/profiling/clocks.py",
        "min(1000 * (other - epoch), most)",
        "min(1000 * (epoch - other), most)",
        ("profiling/test_clocks.py",),
    ),
    Fault(
        "a process that was suspended is taken for stuck once it goes on",
        "engine/training/training_thread.py",
        "passed = min(now - self._looked, LONGEST_POLL_SECONDS)",
        "passed = now - self._looked",
        ("training/test_training_thread.py",),
    ),
    Fault(
        "of arrays that look alike `watch` shows any as that of the state",
        "engine/watching/external_step.py",
        "return {span: other for span, other in single.items() if all(wanted[at] == 1 for at in range(*other))}",
        "return single",
        ("watching/test_matching.py",),
    ),
    Fault(
        "the loss chart draws means with losses of the steps before",
        "tui/state/losses.py",
        "first, last = -(-begin // BLOCK), end // BLOCK",
        "first, last = begin // BLOCK, end // BLOCK",
        ("tui/test_loss_chart.py",),
    ),
    Fault(
        "in Rules text that was typed for one preset is applied to another",
        "tui/screens/rules.py",
        "            self.draft = self.load_draft(name)\n            self.close_prompt()\n",
        "            self.draft = self.load_draft(name)\n",
        ("tui/test_keys.py",),
    ),
    Fault(
        "a text that would be cut at a number is wider than its cell",
        "tui/widgets/lines.py",
        "return number.start()",
        "return number.end()",
        ("tui/test_cut.py",),
    ),
    Fault(
        "characters that show nothing are taken for letters",
        "tui/terminal/clean.py",
        "if text.isprintable() and (text.isascii() or not BLANK_LETTERS.search(text)):",
        "if text.isprintable():",
        ("tui/test_clean.py",),
    ),
]
FAULTS = [*(fault._replace(is_mended=True) for fault in MENDED), *OTHERS]
