"""Training steps of well-known models as programs: traced, never run.

    program = zoo.build("llama_7b")

Architectures come from Keras and KerasHub, on the JAX backend; a few that neither has are written with Keras layers.
Batches are those of the papers whose tables the benchmarks redo: FastSA (vision 512; text 128 of 512 tokens; language
models 8 of 2048, GPT-2 of 1024), Coop, and MODeL (1 and 32). Models are in training mode and in float32, without
dropout but for EfficientNet, whose stochastic depth belongs to it. ``python -m zoo`` in `benchmarks/` lists them all.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

from coopjax.jaxpr.step_program import ProgramOptions, step_program
from coopjax.program.step_program import StepProgram
from zoo import attention, convolutional, dynamic, text, vision
from zoo.step import Step

FASTSA, COOP, MODEL = "fastsa", "coop", "model"


@dataclasses.dataclass(frozen=True)
class Model:
  """A model of the zoo.

  Attributes:
    step: what is traced.
    batches: by the paper that evaluates it, the batch sizes of its tables.
    num_nodes: of FastSA's graph, for comparison.
  """

  step: Callable[[], Step]
  batches: dict[str, tuple[int, ...]]
  num_nodes: int | None

  @property
  def default_batch(self) -> int:
    """The first of the first paper."""
    return next(iter(self.batches.values()))[0]


def _model(
  step: Callable[..., Step],
  *args,
  fastsa: int | None = None,
  coop: int | None = None,
  model: bool = False,
  num_nodes: int | None = None,
) -> Model:
  batches = {FASTSA: (fastsa,) if fastsa else (), COOP: (coop,) if coop else (), MODEL: (1, 32) if model else ()}
  return Model(functools.partial(step, *args), {paper: sizes for paper, sizes in batches.items() if sizes}, num_nodes)


MODELS = {
  "alexnet": _model(convolutional.alexnet, model=True),
  "vgg11": _model(vision.vgg11, fastsa=512, model=True, num_nodes=69),
  "vgg16": _model(vision.application, "VGG16", model=True),
  "vgg19": _model(vision.application, "VGG19", model=True),
  "resnet18": _model(vision.resnet18, fastsa=512, model=True, num_nodes=171),
  "resnet50": _model(vision.application, "ResNet50", coop=115, model=True),
  "resnet152": _model(vision.application, "ResNet152", coop=55, model=True),
  "resnet3d": _model(convolutional.resnet3d, model=True),
  "densenet121": _model(vision.application, "DenseNet121", coop=70),
  "googlenet": _model(convolutional.googlenet, model=True),
  "inception_v3": _model(vision.application, "InceptionV3", coop=96, model=True),
  "mobilenet_v3_large": _model(vision.mobilenet_v3_large, fastsa=512, model=True, num_nodes=484),
  "efficientnet_b0": _model(vision.application, "EfficientNetB0", fastsa=512, model=True, num_nodes=996),
  "convnext_tiny": _model(vision.application, "ConvNeXtTiny", fastsa=512, num_nodes=932),
  "convnext_v2_large": _model(attention.convnext_v2_large, fastsa=512, num_nodes=2840),
  "coatnet_2": _model(attention.coatnet_2, fastsa=512, num_nodes=2204),
  "unet": _model(convolutional.unet, coop=5),
  "vit_small": _model(vision.vit, 12, 6, 384, fastsa=512, model=True, num_nodes=1425),
  "vit_base": _model(vision.vit, 12, 12, 768, model=True),
  "vit_large": _model(vision.vit, 24, 16, 1024, fastsa=512, model=True, num_nodes=2817),
  "deit_base": _model(vision.deit_base, fastsa=512, num_nodes=1545),
  "beit_base": _model(attention.beit_base, fastsa=512, num_nodes=1835),
  "eva02_large": _model(attention.eva02_large, fastsa=512, num_nodes=6205),
  "xcit_tiny": _model(attention.xcit_tiny, fastsa=512, num_nodes=2818),
  "swin_tiny": _model(vision.swin_tiny, coop=40),
  "bert_base": _model(text.bert, 12, 12, 768, fastsa=128, model=True, num_nodes=2078),
  "bert_large": _model(text.bert, 24, 16, 1024, coop=16, model=True),
  "distil_bert": _model(text.distil_bert, fastsa=128, num_nodes=1060),
  "albert": _model(text.albert, fastsa=128, num_nodes=2285),
  "electra_small": _model(text.electra_small, fastsa=128, num_nodes=2099),
  "xlm_roberta": _model(text.xlm_roberta, model=True),
  "gpt2": _model(text.gpt, 12, 12, 768, 1024, fastsa=8, num_nodes=1889),
  "gpt3_125m": _model(text.gpt, 12, 12, 768, 2048, fastsa=8, num_nodes=2088),
  "gpt3_2_7b": _model(text.gpt, 32, 32, 2560, 2048, fastsa=8, coop=8, num_nodes=5488),
  "opt_350m": _model(text.opt, 24, 16, 1024, fastsa=8, num_nodes=3971),
  "opt_6_7b": _model(text.opt, 32, 32, 4096, fastsa=8, num_nodes=5245),
  "bloom_560m": _model(text.bloom, 24, 16, 1024, fastsa=8, num_nodes=3667),
  "bloom_3b": _model(text.bloom, 30, 32, 2560, fastsa=8, num_nodes=4567),
  "llama_7b": _model(text.llama, 32, 32, 4096, 11008, fastsa=8, num_nodes=8330),
  "bilstm": _model(dynamic.bilstm, coop=2048),
  "spos": _model(dynamic.spos, coop=64),
}
"""By name. FastSA's DeiT III is a DeiT here, its GPT-Neos are GPT-3s of their sizes, whose attention is dense
throughout, and its OPT 350M is normalized before attention, as the larger ones are.
Coop's batches of SPOS and of GPT-3 are not known."""


def build(
  name: str,
  batch: int | None = None,
  options: ProgramOptions = ProgramOptions(outputs_take_budget=True),
  *,
  learning_rate: float | None = None,
) -> StepProgram:
  """The joint forward and backward program of a model.

  Args:
    name: of `MODELS`.
    batch: examples; by default the model's `default_batch`.
    options: how costs and bytes are counted; by default as FastSA counts them.
    learning_rate: of the gradient descent that replaces the weights; None: the step ends with the gradients.
  """
  if name not in MODELS:
    raise ValueError(f"unknown model {name!r}; there are {', '.join(MODELS)}")
  traced = MODELS[name].step().trace(batch or MODELS[name].default_batch, learning_rate)
  return step_program(traced.jaxpr, options, traced.donations)
