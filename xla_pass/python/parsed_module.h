// A module that Python holds: parsed once, then read, rewritten and verified.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffers/analysis.h"
#include "buffers/heap.h"
#include "hlo/module.h"
#include "python/bindings.h"

namespace coopjax::python {

struct ParsedModule {
  explicit ParsedModule(const nb::bytes& module_bytes) {
    std::string copy(module_bytes.c_str(), module_bytes.size()), error;
    {
      nb::gil_scoped_release release;
      module = hlo::ParseModule(std::move(copy), &error);
    }
    if (module == nullptr) throw nb::value_error(error.c_str());
  }

  // This and the next are made when first asked for; the GIL serializes the asking.
  const HloAnalysis& Analysis() const {
    std::string error;
    if (analysis == nullptr) analysis = AnalyzeHlo(*module, &error);
    if (analysis == nullptr) throw nb::value_error(error.c_str());
    return *analysis;
  }

  const HeapResult& Heap() const {
    const HloAnalysis& derived = Analysis();
    if (!heap) heap = AssignBuffers(*derived.alias, derived.ranges);
    return *heap;
  }

  // The index of the computation with the given id, by default of the entry.
  int32_t ComputationIndex(std::optional<int64_t> computation_id) const {
    if (!computation_id) return module->entry;
    const int32_t index = module->computation_index.Find(*computation_id);
    if (index < 0) throw nb::value_error("there is no such computation");
    return index;
  }

  std::unique_ptr<const hlo::Module> module;
  mutable std::unique_ptr<const HloAnalysis> analysis;
  mutable std::optional<HeapResult> heap;
};

// Text from a module: UTF-8 unless somebody damaged it, and then it must not stop anything.
inline nb::object ToText(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

inline nb::tuple ToTexts(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(ToText(text));
  return nb::tuple(list);
}

}  // namespace coopjax::python
