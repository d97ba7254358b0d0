// What a lead says and is told, as messages (node.proto). Shared by shard 0 and by a task that is
// its own lead.
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

// So many epochs are repeated in each report; the coordinator has taken older ones long ago.
inline constexpr size_t kReportedEpochs = 1000;

node::v1::LeadState MakeLeadState(const Lead& lead, int64_t lineage);

// What stands in a manifest; doubles are exact.
std::string EncodeSnapshot(const LeadSnapshot& snapshot);
// DataLoss: bytes that are no LeadSnapshot, or an order in it without meaning. CheckSnapshot says
// the rest.
absl::StatusOr<LeadSnapshot> DecodeSnapshot(absl::string_view bytes);

// InvalidArgument, naming the order: no id, nothing to do, a rate that is none.
absl::StatusOr<std::vector<Order>> ReadOrders(
    const google::protobuf::RepeatedPtrField<node::v1::Order>& orders);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_LEAD_MESSAGES_H_
