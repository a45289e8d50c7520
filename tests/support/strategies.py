"""StepPrograms that Hypothesis draws."""

from hypothesis import strategies as st

from coopjax.program.step_program import CONSTANT, OUTPUT, PARAMETER, TEMPORARY, StepProgram
from tests.support.programs import Builder


@st.composite
def random_programs(draw, max_ops: int = 24, plain: bool = False) -> StepProgram:
  """Anything the rules allow: several or no outputs, zero sizes, workspace, pinned ops, aliases, control edges.

  ``plain`` leaves out storage tricks and pinned ops, for oracles that do not know them.
  """
  b = Builder()
  readable = [b.value(draw(st.integers(0, 9)), draw(st.sampled_from([PARAMETER, CONSTANT]))) for _ in range(2)]
  for op in range(draw(st.integers(0, max_ops))):
    inputs = draw(st.lists(st.sampled_from(readable), max_size=3, unique=True)) if readable else []
    sizes = draw(st.lists(st.integers(0, 12), min_size=plain, max_size=1 if plain else 3))
    kind = TEMPORARY if plain else draw(st.sampled_from([TEMPORARY] * 6 + [OUTPUT]))
    cost_s = float(draw(st.integers(0, 9)))
    if plain:
      made = b.op(inputs, *sizes, cost_s=cost_s)
    else:
      overwritten, share = -1, ()
      if inputs and sizes and draw(st.integers(0, 4)) == 0 and b.kind[inputs[0]] != CONSTANT:
        spoils_parameter = b.kind[inputs[0]] == PARAMETER
        if spoils_parameter == (kind == OUTPUT) and b.kind[inputs[0]] != OUTPUT:
          overwritten, sizes[0] = inputs[0], b.bytes[inputs[0]]
      elif sizes:
        share = [value for value in inputs if draw(st.booleans()) and b.bytes[value] >= sizes[0]]
      control = draw(st.lists(st.integers(0, op - 1), max_size=1)) if op else []
      made = b.op(
        inputs,
        *sizes,
        kind=kind,
        cost_s=cost_s,
        workspace=draw(st.sampled_from([0, 0, 0, 5])),
        can_recompute=draw(st.sampled_from([True] * 5 + [False])),
        control=control,
        in_place_of=overwritten,
        share=share,
      )
      if overwritten >= 0:
        readable.remove(overwritten)
    readable += [made] if isinstance(made, int) else list(made)
  return b.build()
