"""HLO modules of any size for `inspect --hlo`: ordinary ones, and hostile ones that no compiler writes."""

from collections.abc import Callable, Iterable

MESH = {"data": 4, "model": 2}
HEAD = "HloModule m, num_partitions=8\n\n"
ADD = """\
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

"""
ENTRY = "ENTRY %e (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
TRANSFER = 'is_host_transfer=true, _xla_megascale_transfer_type="ALL_REDUCE"'
SHORT = "replica_groups=[4,2]<=[8], to_apply=%add"
UNTIL = """\
%until (c: (s32[])) -> pred[] {
  %c = (s32[]) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %end = s32[] constant(9)
  ROOT %less = pred[] compare(%j, %end), direction=LT
}

"""
START = "  %zero = s32[] constant(0)\n  %state = (s32[]) tuple(%zero)\n"


def collectives(count: int) -> str:
    metadata = 'metadata={op_name="jit(step)/jvp(blocks)/while/body/mlp/dot_general" stack_frame_id=1}'
    return module(reduced("%p", f"channel_id={n}, {SHORT}, {metadata}", n) for n in range(count))


def repeated(text: str, size: int) -> str:
    """Returns a module of about `size` characters that repeats a module's computations under new names."""
    at = min(found for start in ("\n%", "\nENTRY ") if (found := text.find(start)) >= 0)
    copied = text[at:].replace("\nENTRY ", "\n")
    return text[:at] + "".join(copied.replace("%", f"%c{n}.") for n in range(size // len(copied))) + text[at:]


def module(lines: Iterable[str], before: str = "", tables: str = "") -> str:
    """Returns a module with these lines in its entry computation, other computations `before` it, and `tables`."""
    return f"{HEAD}{tables}{ADD}{before}{ENTRY}{''.join(lines)}}}\n"


def reduced(operands: str, attributes: str, number: int = 0, type_: str = "f32[8]{0}") -> str:
    return f"  %r.{number} = {type_} all-reduce({operands}), {attributes}\n"


def grouped(groups: str) -> str:
    return module([reduced("%p", f"replica_groups={groups}")])


def loops(body: str, count: int, before: str = "") -> str:
    """Returns a module with `count` loops over one body, whose next counter is %last."""
    text = "%body (t: (s32[])) -> (s32[]) {\n  %t = (s32[]) parameter(0)\n"
    text += "  %i = s32[] get-tuple-element(%t), index=0\n  %one = s32[] constant(1)\n"
    text += f"{body}  ROOT %next = (s32[]) tuple(%last)\n}}\n\n"
    lines = (f"  %w.{n} = (s32[]) while(%state), condition=%until, body=%body\n" for n in range(count))
    return module([START, *lines], before + text + UNTIL)


def nested(count: int, call: str) -> str:
    """Returns computations %n.0, %n.1, … that each call the one before."""
    head = "(q: s32[]) -> s32[] {\n  %q = s32[] parameter(0)\n"
    return "".join(f"%n.{n} {head}{call.format(n - 1)}}}\n\n" for n in range(count))


def _frames(size: int) -> str:
    files = 'FileNames\n1 "/x-packages/jax/a.py"\n\nFileLocations\n1 {file_name_id=1 line=1}\n\n'
    frames = "".join(f"{n} {{file_location_id=1 parent_frame_id={n}}}\n" for n in range(1, size // 200))
    lines = (reduced("%p", f"{SHORT}, metadata={{stack_frame_id={n}}}", n) for n in range(1, size // 200))
    return module(lines, tables=f"{files}StackFrames\n{frames}\n")


def _copies(count: int) -> str:
    lines = (f"  %x.{n} = s32[] copy(%x.{n - 1})\n" for n in range(1, count))
    return f"  %x.0 = s32[] copy(%i)\n{''.join(lines)}  %last = s32[] add(%x.{count - 1}, %one)\n"


def _carried(size: int) -> str:
    lines = (f"  %g.{n} = f32[8] all-reduce(%q), channel_id={n}, {SHORT}\n" for n in range(size // 80))
    fused = f"%fused (q: f32[8]) -> f32[8] {{\n  %q = f32[8] parameter(0)\n{''.join(lines)}}}\n\n"
    return module(["  %f = f32[8] fusion(%p), kind=kLoop, calls=%fused\n"], fused)


def _shared(size: int, operand: str) -> str:
    return module([f"  %o = {operand}\n", *(reduced("%o", SHORT, n) for n in range(size // 160))])


HOSTILE: dict[str, Callable[[int], str]] = {
    "mesh of one long word": lambda size: grouped("mesh[" + "a" * size),
    "mesh of one long word, closed": lambda size: grouped("mesh[" + "a" * size + "] {'a'}"),
    "mesh that begins repeatedly": lambda size: grouped("mesh[" + ", replica_groups=mesh[" * (size // 22)),
    "mesh of many axes": lambda size: grouped("mesh[" + "'a'=1," * (size // 6) + "'b'=8] {'b'}"),
    "mesh of many parts": lambda size: grouped("mesh['b'=8] {" + "'b':(1)1," * (size // 9) + "'b'}"),
    "lists that do not end": lambda size: grouped("{" + "{0,1}," * (size // 6)),
    "lists of too many": lambda size: grouped("{" + "{0,1}," * (size // 6) + "{2,3}}"),
    "pairs that do not end": lambda size: module([reduced("%p", "source_target_pairs={" + "{0,1}," * (size // 6))]),
    "iota of many devices": lambda _: grouped("[1,100000000]<=[100000000]"),
    "iota of large groups": lambda _: grouped("[1,100000000]<=[8]"),
    "iota of many dims": lambda size: grouped("[4,2]<=[" + "1," * (size // 2) + "8]"),
    "iota of huge dims": lambda size: grouped("[4,2]<=[" + ("9" * 4000 + ",") * (size // 4000) + "8]"),
    "many different iotas": lambda size: module(
        reduced("%p", f"replica_groups=[4,2]<=[8{',1' * (n % 50)}]T({','.join(map(str, range(n % 50 + 1)))})", n)
        for n in range(size // 200)
    ),
    "an op name that does not end": lambda size: module([reduced("%p", SHORT + ', op_name="' + "\\a" * (size // 2))]),
    "op names that do not end": lambda size: module([reduced("%p", SHORT + ', op_name="\\' * (size // 50))]),
    "an op name of primitives": lambda size: module([reduced("%p", f'{SHORT}, op_name="{"psum" * (size // 4)}!"')]),
    "a type that is one long word": lambda size: module([reduced("%p", SHORT, type_="f" * size)]),
    "a type of many arrays": lambda size: module([reduced("%p", SHORT, type_=f"({'f32[1], ' * (size // 8)}f32[1])")]),
    "a type of many dims": lambda size: module([reduced("%p", SHORT, type_=f"f32[{'1,' * (size // 2)}1]")]),
    "a type of huge dims": lambda size: module(
        [reduced("%p", SHORT, type_=f"f32[{('9' * 4000 + ',') * (size // 4000)}1]")]
    ),
    "a type that does not end": lambda size: module([reduced("%p", SHORT, type_="(" + "f32[1" * (size // 5))]),
    "a type that ends repeatedly": lambda size: module([f"  %a = ({') a' * (size // 3)}\n"]),
    "types of many dtypes": lambda size: _shared(
        size // 2, f"({', '.join(f'a{n}[1]' for n in range(size // 20))}) p()"
    ),
    "an operand of many arrays for all": lambda size: _shared(size // 2, f"({'f32[1], ' * (size // 16)}f32[1]) p()"),
    "an operand of a long name for all": lambda size: _shared(size // 2, f'f32[1] p(), op_name="{"a/" * (size // 4)}"'),
    "an operand of long attributes for all": lambda size: _shared(size // 2, f"f32[1] p(), {'a=b, ' * (size // 10)}"),
    "transfers to many slices": lambda size: module(
        f"  %s.{n} = (f32[8]{{0}}, u32[], token[]) send(%p), {TRANSFER}, _xla_megascale_target="
        f'"{{{"1," * (size // 600)}1}}x{{0:7}}"\n'
        for n in range(100)
    ),
    "transfers whose targets do not end": lambda size: module(
        f"  %s.{n} = (f32[8]{{0}}, u32[], token[]) send(%p), {TRANSFER}{', _xla_megascale_target={' * (size // 6000)}\n"
        for n in range(100)
    ),
    "an operand named repeatedly": lambda size: module([reduced("%p, " * (size // 4), SHORT)]),
    "parentheses": lambda size: module([reduced("(" * (size // 2) + ")" * (size // 2), SHORT)]),
    "parentheses that do not close": lambda size: module([reduced("(" * size, SHORT)]),
    "branches that do not end": lambda size: module(
        [f"  %c = f32[8] conditional(%p){', branch_computations={' * (size // 24)}\n"]
    ),
    "instructions that are one long word": lambda size: module(["  " + "a" * size + "\n", "  %a = b" * (size // 8)]),
    "blanks": lambda size: module([" " * size + "\n", "  %a =" + " " * size + "\n"]),
    "short lines": lambda size: module(f" {n:x} = b c(d)\n" for n in range(size // 18)),
    "short computations": lambda size: module(
        [], "".join(f"%{n:x} () {{\n a = b c(d)\n}}\n" for n in range(size // 26))
    ),
    "computations that call one another in a row": lambda size: module(
        ["  %c = s32[] call(%p), to_apply=%n.0\n"], nested(size // 80, "  ROOT %c = s32[] call(%q), to_apply=%n.{}\n")
    ),
    "computations that call the one before twice": lambda size: module(
        [f"  %c = s32[] call(%p), to_apply=%n.{size // 130 - 1}\n"],
        nested(size // 130, "  %c = s32[] call(%q), to_apply=%n.{0}\n  ROOT %d = s32[] call(%q), to_apply=%n.{0}\n"),
    ),
    "a computation that calls itself": lambda _: module(
        ["  %c = s32[] call(%p), to_apply=%n\n"],
        "%n (q: s32[]) -> s32[] {\n  ROOT %c = s32[] call(%q), to_apply=%n\n}\n",
    ),
    "nested loops of endless trip counts": lambda size: module(
        ["  %w = s32[] while(%p), body=%n.0, condition=%until\n"],
        UNTIL
        + nested(
            size // 150,
            "  %w = s32[] while(%q), body=%n.{}, condition=%until, "
            '{{"known_trip_count":{{"n":"9000000000000000000"}}}}\n',
        ),
    ),
    "a trip count of thousands of digits": lambda size: module(
        [f'  %w = s32[] while(%p), body=%add, condition=%add, {{"known_trip_count":{{"n":"{"9" * size}"}}}}\n']
    ),
    "a counter that is its own copy": lambda _: loops("  %x = s32[] copy(%last)\n  %last = s32[] copy(%x)\n", 1),
    "many loops over a counter copied many times": lambda size: loops(_copies(size // 60), size // 120),
    "frames upon frames of libraries": _frames,
    "a file of a long name": lambda size: _frames(size // 2).replace("/x-packages/", f"/{'x' * (size // 2)}-packages/"),
    "numbers of thousands of digits": lambda size: module(
        [reduced("%p", f"{SHORT}, channel_id={'9' * (size // 3)}, stack_frame_id={'9' * (size // 3)}")]
    ),
    "a fusion of many collectives": _carried,
}
"""Functions from a number of characters to a module of about that size. Some are refused; none may take long."""
