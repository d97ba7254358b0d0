// Feeds any bytes to the parser of the lead's snapshot in a manifest. A snapshot that passes the
// checks restores a lead, and reads back the same after it is written.
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/check/check.h"
#include "training/spec/lead_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace ct = capstan::training;
  const auto snapshot =
      ct::spec::DecodeSnapshot(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!snapshot.ok()) {
    CAPSTAN_CHECK(absl::IsDataLoss(snapshot.status()));
    return 0;
  }
  static const ct::SamplePlan samples =
      *ct::SamplePlan::Create({.dataset_size = 10, .global_batch = 4, .lanes = 2});
  constexpr int64_t kTotalSteps = 6;
  if (!ct::CheckSnapshot(*snapshot, snapshot->step, kTotalSteps, samples).ok()) return 0;
  ct::LeadOptions options;
  options.total_steps = kTotalSteps;
  options.dynamic_loss_scale = true;
  ct::ScheduleOptions schedule;
  schedule.learning_rate = 0.5;
  ct::Lead lead(options, samples, *ct::EvalPlan::Create(3, 2),
                *ct::Schedule::Create(schedule, 3, kTotalSteps), absl::ZeroDuration());
  lead.Restore(*snapshot, absl::ZeroDuration());
  const std::string bytes = ct::spec::EncodeSnapshot(lead.Snapshot());
  const auto again = ct::spec::DecodeSnapshot(bytes);
  CAPSTAN_CHECK(again.ok() && ct::CheckSnapshot(*again, snapshot->step, kTotalSteps, samples).ok());
  return 0;
}
