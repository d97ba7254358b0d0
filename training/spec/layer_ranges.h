// Attributes of a layer that are wrong whatever the layer reads, such as a kernel of the height 0.
#ifndef CAPSTAN_TRAINING_SPEC_LAYER_RANGES_H_
#define CAPSTAN_TRAINING_SPEC_LAYER_RANGES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/ops/op.h"

namespace capstan::training::spec {

// Null: the operator has no such attribute.
const AttributeDef* FindAttribute(const OpDef& op, absl::string_view name);

struct LayerFault {
  std::string attribute;  // its name
  std::string message;    // "kernel of the height 0, want at least 1"
};

// The faults of `node`, which has operator `op`, in the order of the attributes. The attributes have
// the types of the operator. Empty: there is none, or it depends on the value that the layer reads.
// That is found when the graph is built. Threads: a function without state.
std::vector<LayerFault> FaultsOfLayer(const OpDef& op, const job::v1::GraphNode& node);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_LAYER_RANGES_H_
