#include "training/spec/lead_messages.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace capstan::training::spec {
namespace {

void ToProto(const EpochRecord& from, common::v1::EpochRecord& to) {
  to.set_epoch(from.epoch);
  if (from.train_loss) to.set_train_loss(*from.train_loss);
  if (from.train_accuracy) to.set_train_accuracy(*from.train_accuracy);
  if (from.validation_loss) to.set_validation_loss(*from.validation_loss);
  if (from.validation_accuracy) to.set_validation_accuracy(*from.validation_accuracy);
  if (from.samples_per_second) to.set_samples_per_second(*from.samples_per_second);
  to.set_seconds(from.seconds);
}

EpochRecord FromProto(const common::v1::EpochRecord& from) {
  EpochRecord to;
  to.epoch = from.epoch();
  if (from.has_train_loss()) to.train_loss = from.train_loss();
  if (from.has_train_accuracy()) to.train_accuracy = from.train_accuracy();
  if (from.has_validation_loss()) to.validation_loss = from.validation_loss();
  if (from.has_validation_accuracy()) to.validation_accuracy = from.validation_accuracy();
  if (from.has_samples_per_second()) to.samples_per_second = from.samples_per_second();
  to.seconds = from.seconds();
  return to;
}

void ToProto(const EpochSums& from, node::v1::EpochSums& to) {
  to.set_epoch(from.epoch);
  to.set_samples(from.seals.samples);
  to.set_loss_sum(from.seals.loss_sum);
  to.set_correct(from.seals.correct);
  to.set_seconds(from.seconds);
}

EpochSums FromProto(const node::v1::EpochSums& from) {
  return {from.epoch(), {from.samples(), from.loss_sum(), from.correct()}, from.seconds()};
}

void ToProto(const Order& from, node::v1::Order& to) {
  to.set_id(from.id);
  switch (from.what) {
    case Order::What::kLearningRate:
      to.set_learning_rate(from.learning_rate);
      break;
    case Order::What::kMaxStaleness:
      to.set_max_staleness(from.max_staleness);
      break;
    case Order::What::kCheckpoint:
      to.set_checkpoint(true);
      break;
    case Order::What::kSuspend:
      to.set_suspend(true);
      break;
  }
  if (from.step.has_value()) to.set_step(*from.step);
}

absl::StatusOr<Order> FromProto(const node::v1::Order& from) {
  const auto bad = [&from](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("order ", from.id(), ": ", what));
  };
  Order to;
  to.id = from.id();
  if (to.id < 1) return bad("an id is at least 1");
  if (from.has_step()) {
    if (from.step() < 0) return bad(absl::StrCat("step ", from.step(), ", want >= 0"));
    to.step = from.step();
  }
  switch (from.what_case()) {
    case node::v1::Order::kLearningRate:
      to.what = Order::What::kLearningRate;
      to.learning_rate = from.learning_rate();
      if (!(to.learning_rate > 0) || !std::isfinite(to.learning_rate)) {
        return bad(
            absl::StrCat("learning_rate ", to.learning_rate, ", want a finite number above 0"));
      }
      return to;
    case node::v1::Order::kMaxStaleness:
      to.what = Order::What::kMaxStaleness;
      to.max_staleness = from.max_staleness();
      if (to.max_staleness < -1) {
        return bad(absl::StrCat("max_staleness ", to.max_staleness, ", want -1 or more"));
      }
      return to;
    case node::v1::Order::kCheckpoint:
      if (!from.checkpoint()) return bad("checkpoint: false");
      to.what = Order::What::kCheckpoint;
      return to;
    case node::v1::Order::kSuspend:
      if (!from.suspend()) return bad("suspend: false");
      to.what = Order::What::kSuspend;
      return to;
    case node::v1::Order::WHAT_NOT_SET:
      break;
  }
  return bad("an order that this version does not know");
}

}  // namespace

absl::StatusOr<std::vector<Order>> ReadOrders(
    const google::protobuf::RepeatedPtrField<node::v1::Order>& orders) {
  std::vector<Order> out;
  for (const node::v1::Order& order : orders) {
    absl::StatusOr<Order> read = FromProto(order);
    if (!read.ok()) return read.status();
    out.push_back(*read);
  }
  return out;
}

std::string EncodeSnapshot(const LeadSnapshot& snapshot) {
  node::v1::LeadSnapshot to;
  to.set_step(snapshot.step);
  to.set_samples_used(snapshot.samples_used);
  to.set_skipped_steps(snapshot.skipped_steps);
  to.set_nonfinite_in_a_row(snapshot.nonfinite_in_a_row);
  ToProto(snapshot.epoch, *to.mutable_epoch());
  if (snapshot.ending.has_value()) ToProto(*snapshot.ending, *to.mutable_ending());
  for (const EpochRecord& epoch : snapshot.epochs) ToProto(epoch, *to.add_epochs());
  for (const Order& order : snapshot.applied_orders) ToProto(order, *to.add_applied_orders());
  to.set_learning_rate(snapshot.learning_rate);
  if (snapshot.max_staleness.has_value()) to.set_max_staleness(*snapshot.max_staleness);
  to.set_loss_scale(snapshot.loss_scale);
  to.set_loss_scale_good_steps(snapshot.loss_scale_good_steps);
  return to.SerializeAsString();
}

absl::StatusOr<LeadSnapshot> DecodeSnapshot(absl::string_view bytes) {
  node::v1::LeadSnapshot from;
  if (!from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("lead snapshot: no LeadSnapshot message");
  }
  LeadSnapshot to;
  to.step = from.step();
  to.samples_used = from.samples_used();
  to.skipped_steps = from.skipped_steps();
  to.nonfinite_in_a_row = from.nonfinite_in_a_row();
  to.epoch = FromProto(from.epoch());
  if (from.has_ending()) to.ending = FromProto(from.ending());
  for (const common::v1::EpochRecord& epoch : from.epochs()) to.epochs.push_back(FromProto(epoch));
  absl::StatusOr<std::vector<Order>> orders = ReadOrders(from.applied_orders());
  if (!orders.ok()) {
    return absl::DataLossError(absl::StrCat("lead snapshot: ", orders.status().message()));
  }
  to.applied_orders = *std::move(orders);
  to.learning_rate = from.learning_rate();
  if (from.has_max_staleness()) to.max_staleness = from.max_staleness();
  to.loss_scale = from.loss_scale();
  to.loss_scale_good_steps = from.loss_scale_good_steps();
  return to;
}

node::v1::LeadState MakeLeadState(const Lead& lead, int64_t lineage) {
  node::v1::LeadState state;
  state.set_lineage(lineage);
  state.set_step(lead.step());
  if (lead.last_loss().has_value()) state.set_loss(*lead.last_loss());
  if (lead.running_accuracy().has_value()) state.set_accuracy(*lead.running_accuracy());
  if (lead.last_learning_rate().has_value()) state.set_learning_rate(*lead.last_learning_rate());
  state.set_samples_used(lead.samples_used());
  const std::vector<EpochRecord>& epochs = lead.epochs();
  for (size_t i = epochs.size() - std::min(epochs.size(), kReportedEpochs); i < epochs.size();
       ++i) {
    ToProto(epochs[i], *state.add_epochs());
  }
  state.set_complete(lead.complete());
  if (lead.failure().has_value()) {
    state.set_reason(lead.failure()->reason);
    state.set_message(lead.failure()->message);
  }
  state.set_skipped_steps(lead.skipped_steps());
  if (lead.last_skipped_step()) state.set_last_skipped_step(*lead.last_skipped_step());
  state.set_samples_per_second(lead.samples_per_second());
  for (const Order& order : lead.applied_orders()) {
    state.add_applied_order_ids(order.id);
    state.add_applied_order_steps(*order.step);
  }
  state.set_suspended(lead.suspended());
  return state;
}

}  // namespace capstan::training::spec
