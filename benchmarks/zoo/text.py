"""Language models, from KerasHub's architectures and the configurations of their papers."""

from collections.abc import Callable

import keras
import keras_hub
import keras_hub.models as hub

from zoo.step import Step

_MASKED_SHARE = 0.15  # of the tokens, as BERT is trained


def _masked_lm(backbone: Callable[[], keras.Model], length: int = 512) -> Step:
  """Predicts the masked tokens, with the weights of the embedding."""
  num_masked = round(_MASKED_SHARE * length)

  def make() -> keras.Model:
    encoder = backbone()
    outputs = encoder.output["sequence_output"] if isinstance(encoder.output, dict) else encoder.output
    positions = keras.Input((None,), dtype="int32", name="mask_positions")
    head = keras_hub.layers.MaskedLMHead(token_embedding=encoder.token_embedding, intermediate_activation="gelu")
    return keras.Model({**encoder.input, "mask_positions": positions}, head(outputs, positions))

  shapes = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), (length,))
  return Step(make, (num_masked,), {**shapes, "mask_positions": (num_masked,)})


def _causal_lm(backbone: Callable[[], keras.Model], length: int = 2048) -> Step:
  """Predicts every next token."""

  def make() -> keras.Model:
    decoder = backbone()
    return keras.Model(decoder.input, decoder.token_embedding(decoder.output, reverse=True))

  return Step(make, (length,), dict.fromkeys(("token_ids", "padding_mask"), (length,)))


def bert(num_layers: int, num_heads: int, hidden_dim: int) -> Step:
  """Devlin et al. 2018."""
  return _masked_lm(
    lambda: hub.BertBackbone(
      vocabulary_size=30522,
      num_layers=num_layers,
      num_heads=num_heads,
      hidden_dim=hidden_dim,
      intermediate_dim=4 * hidden_dim,
      dropout=0.0,
    )
  )


def distil_bert() -> Step:
  """Sanh et al. 2019."""
  return _masked_lm(
    lambda: hub.DistilBertBackbone(
      vocabulary_size=30522, num_layers=6, num_heads=12, hidden_dim=768, intermediate_dim=3072, dropout=0.0
    )
  )


def albert() -> Step:
  """ALBERT base: twelve layers that share their weights (Lan et al. 2019)."""
  return _masked_lm(
    lambda: hub.AlbertBackbone(
      vocabulary_size=30000, num_layers=12, num_heads=12, embedding_dim=128, hidden_dim=768, intermediate_dim=3072
    )
  )


def electra_small(length: int = 512) -> Step:
  """The discriminator: which tokens were replaced (Clark et al. 2020)."""

  def make() -> keras.Model:
    encoder = hub.ElectraBackbone(
      vocab_size=30522,
      num_layers=12,
      num_heads=4,
      hidden_dim=256,
      embedding_dim=128,
      intermediate_dim=1024,
      dropout=0.0,
    )
    hidden = keras.layers.Dense(256, "gelu")(encoder.output["sequence_output"])
    return keras.Model(encoder.input, keras.layers.Dense(2)(hidden))

  return Step(make, (length,), dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), (length,)))


def xlm_roberta() -> Step:
  """XLM-R base (Conneau et al. 2019)."""
  return _masked_lm(
    lambda: hub.XLMRobertaBackbone(
      vocabulary_size=250002,
      num_layers=12,
      num_heads=12,
      hidden_dim=768,
      intermediate_dim=3072,
      dropout=0.0,
      max_sequence_length=512,
    )
  )


def gpt(num_layers: int, num_heads: int, hidden_dim: int, length: int) -> Step:
  """GPT-2 (Radford et al. 2019) and GPT-3 (Brown et al. 2020) with dense attention."""
  return _causal_lm(
    lambda: hub.GPT2Backbone(
      vocabulary_size=50257,
      num_layers=num_layers,
      num_heads=num_heads,
      hidden_dim=hidden_dim,
      intermediate_dim=4 * hidden_dim,
      dropout=0.0,
      max_sequence_length=length,
    ),
    length,
  )


def opt(num_layers: int, num_heads: int, hidden_dim: int) -> Step:
  """Zhang et al. 2022."""
  return _causal_lm(
    lambda: hub.OPTBackbone(
      vocabulary_size=50272,
      num_layers=num_layers,
      num_heads=num_heads,
      hidden_dim=hidden_dim,
      intermediate_dim=4 * hidden_dim,
      dropout=0.0,
    )
  )


def bloom(num_layers: int, num_heads: int, hidden_dim: int) -> Step:
  """BigScience 2022."""
  return _causal_lm(
    lambda: hub.BloomBackbone(
      vocabulary_size=250880,
      num_layers=num_layers,
      num_heads=num_heads,
      hidden_dim=hidden_dim,
      intermediate_dim=4 * hidden_dim,
    )
  )


def llama(num_layers: int, num_heads: int, hidden_dim: int, intermediate_dim: int) -> Step:
  """Touvron et al. 2023."""
  return _causal_lm(
    lambda: hub.LlamaBackbone(
      vocabulary_size=32000,
      num_layers=num_layers,
      num_query_heads=num_heads,
      num_key_value_heads=num_heads,
      hidden_dim=hidden_dim,
      intermediate_dim=intermediate_dim,
    )
  )
