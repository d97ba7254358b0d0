// The reports and orders of a lead as messages (node.proto). Shared by shard 0 and by a task that
// is its own lead.
#ifndef CAPSTAN_TRAINING_SPEC_LEAD_MESSAGES_H_
#define CAPSTAN_TRAINING_SPEC_LEAD_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capstan/node/v1/node.pb.h"
#include "training/lead/lead.h"

namespace capstan::training::spec {

// How many epochs each report repeats. The coordinator took older ones long ago.
inline constexpr size_t kReportedEpochs = 1000;

node::v1::LeadState MakeLeadState(const Lead& lead, int64_t lineage);

// The snapshot for a manifest; doubles are exact.
std::string EncodeSnapshot(const LeadSnapshot& snapshot);
// DataLoss: the bytes are not a LeadSnapshot, or an order in it has no meaning. CheckSnapshot
// checks the rest.
absl::StatusOr<LeadSnapshot> DecodeSnapshot(absl::string_view bytes);

// InvalidArgument, naming the order: no id, nothing to do, or a value out of range.
absl::StatusOr<std::vector<Order>> ReadOrders(
    const google::protobuf::RepeatedPtrField<node::v1::Order>& orders);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_LEAD_MESSAGES_H_
