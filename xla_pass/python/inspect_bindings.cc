// Bindings for people who look at memory: what stands behind the times and buffers of `predict_memory`.
#include <cstdint>
#include <string>
#include <vector>

#include "bridge/hlo_program.h"
#include "bridge/text.h"
#include "buffers/heap.h"
#include "python/bindings.h"
#include "python/parsed_module.h"

namespace coopjax::python {
namespace {

// The instructions in flattened time: what runs when, and where it comes from.
void AddInstructions(const HloAnalysis& analysis, nb::dict& fields) {
  const hlo::Module& module = analysis.graph.module();
  std::vector<int64_t> ids, frame_ids;
  std::vector<std::string> names, opcodes, scopes, sources, computations;
  for (const int32_t i : analysis.ranges.sequence) {
    const hlo::Instruction& instruction = module.instructions[i];
    const hlo::Metadata metadata = analysis.metadata.Read(instruction);
    ids.push_back(instruction.id);
    names.emplace_back(instruction.name);
    opcodes.emplace_back(instruction.opcode);
    scopes.emplace_back(metadata.op_name);
    sources.push_back(metadata.Source());
    frame_ids.push_back(metadata.frame_id);
    computations.emplace_back(module.computations[instruction.computation].name);
  }
  fields["instruction_ids"] = ToNumpy(ids);
  fields["names"] = ToTexts(names);
  fields["opcodes"] = ToTexts(opcodes);
  fields["scopes"] = ToTexts(scopes);
  fields["sources"] = ToTexts(sources);
  fields["computations"] = ToTexts(computations);
  fields["frame_ids"] = ToNumpy(frame_ids);
}

// The stack frames: of each its text, and its caller's id. All ids count from 1, 0 is none.
void AddFrames(const HloAnalysis& analysis, nb::dict& fields) {
  std::vector<std::string> texts;
  std::vector<int64_t> callers;
  for (int64_t id = 1; id <= analysis.metadata.num_frames(); ++id) {
    texts.push_back(analysis.metadata.FrameText(id));
    callers.push_back(analysis.metadata.Caller(id));
  }
  fields["frames"] = ToTexts(texts);
  fields["frame_callers"] = ToNumpy(callers);
}

// The shapes of the buffers, in the order of `predict_memory`, and what they would take without padding.
void AddBuffers(const HloAnalysis& analysis, nb::dict& fields) {
  std::vector<std::string> types;
  std::vector<int64_t> unpadded_bytes;
  for (const HeapBuffer& buffer : AssignBuffers(*analysis.alias, analysis.ranges).buffers) {
    hlo::Shape shape = analysis.graph.shape(analysis.dataflow->definition(buffer.value));
    types.push_back(ShapeText(shape));
    shape.tiles.clear();
    shape.tail_alignment_elements = 1;
    unpadded_bytes.push_back(shape.byte_size());
  }
  fields["buffer_types"] = ToTexts(types);
  fields["buffer_unpadded_bytes"] = ToNumpy(unpadded_bytes);
}

}  // namespace

void BindInspect(nb::module_& m) {
  m.def(
      "inspect_module",
      [](const ParsedModule& parsed) {
        const HloAnalysis& analysis = parsed.Analysis();
        nb::dict fields;
        fields["module_name"] = ToText(parsed.module->name);
        AddInstructions(analysis, fields);
        AddFrames(analysis, fields);
        AddBuffers(analysis, fields);
        return fields;
      },
      "Instructions by flattened time (id, name, opcode, scope, source, computation, frame), the frames, and the\n"
      "buffers' types.");
}

}  // namespace coopjax::python
