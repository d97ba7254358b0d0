#include <string>
#include <vector>

#include "training/spec/rules.h"

namespace capstan::training::spec {
namespace {

constexpr int kMaxMilestones = 1000;

// A key of the group, and the schedules that have it.
struct ScheduleKey {
  absl::string_view key;
  bool given;
  std::vector<absl::string_view> schedules;
};

}  // namespace

void CheckSchedule(const job::v1::Optimizer& optimizer, Rules& rules) {
  const job::v1::LrSchedule& s = optimizer.lr_schedule();
  const std::string base = "training.optimizer.lr_schedule.";
  rules.OneOf(base + "name", s.name(),
              {"constant", "step", "multi_step", "cosine", "polynomial", "one_cycle"});
  for (const ScheduleKey& key : {
           ScheduleKey{"every", s.has_every(), {"step"}},
           ScheduleKey{"milestones", s.milestones_size() > 0, {"multi_step"}},
           ScheduleKey{"factor", s.has_factor(), {"step", "multi_step"}},
           ScheduleKey{"min_rate", s.has_min_rate(), {"cosine", "polynomial"}},
           ScheduleKey{"power", s.has_power(), {"polynomial"}},
           ScheduleKey{"pct_start", s.has_pct_start(), {"one_cycle"}},
           ScheduleKey{"div_factor", s.has_div_factor(), {"one_cycle"}},
           ScheduleKey{"final_div_factor", s.has_final_div_factor(), {"one_cycle"}},
       }) {
    bool has = false;
    for (const absl::string_view name : key.schedules) has = has || name == s.name();
    if (key.given && !has) {
      rules.Fail(
          absl::StrCat(base, key.key),
          absl::StrCat("is for the schedule '", absl::StrJoin(key.schedules, "' or '"), "' only"));
    }
  }
  if (s.name() == "step") rules.Required(base + "every", s.has_every());
  if (s.name() == "multi_step") rules.Required(base + "milestones", s.milestones_size() > 0);
  if (s.has_factor() && !(s.factor() > 0 && s.factor() <= 1)) {
    rules.Wrong(base + "factor", absl::StrCat("must be above 0 and at most 1, found ", s.factor()));
  }
  if (s.has_every()) rules.Steps(base + "every", s.every());
  if (s.milestones_size() > kMaxMilestones) {
    rules.Wrong(base + "milestones", absl::StrCat("has ", s.milestones_size(), " entries, ",
                                                  kMaxMilestones, " is the limit"));
  }
  for (const job::v1::Period& milestone : s.milestones()) {
    rules.Steps(base + "milestones", milestone);
  }
  if (s.has_warmup()) {
    rules.Steps(base + "warmup", s.warmup());
    if (s.name() == "one_cycle") {
      rules.Fail(base + "warmup", "has no meaning for 'one_cycle', which has its own: 'pct_start'");
    }
  }
  if (s.has_min_rate()) {
    rules.Finite(base + "min_rate", s.min_rate(), 0, true);
    if (s.min_rate() > optimizer.learning_rate()) {
      rules.Fail(base + "min_rate",
                 absl::StrCat("must not be above the learning rate ", optimizer.learning_rate(),
                              ", found ", s.min_rate()));
    }
  }
  if (s.has_power()) rules.Finite(base + "power", s.power(), 0, false);
  if (s.has_pct_start()) rules.Range(base + "pct_start", s.pct_start(), 0.0, 1.0);
  if (s.has_div_factor()) rules.Finite(base + "div_factor", s.div_factor(), 1, true);
  if (s.has_final_div_factor()) {
    rules.Finite(base + "final_div_factor", s.final_div_factor(), 1, true);
  }
}

// The defaults of PyTorch.
void FillScheduleDefaults(job::v1::Optimizer& optimizer) {
  if (!optimizer.has_lr_schedule()) return;
  job::v1::LrSchedule& s = *optimizer.mutable_lr_schedule();
  if (s.name() == "multi_step" && !s.has_factor()) s.set_factor(0.1);
  if (s.name() == "polynomial") {
    if (!s.has_min_rate()) s.set_min_rate(0);
    if (!s.has_power()) s.set_power(1);
  }
  if (s.name() == "one_cycle") {
    if (!s.has_pct_start()) s.set_pct_start(0.3);
    if (!s.has_div_factor()) s.set_div_factor(25);
    if (!s.has_final_div_factor()) s.set_final_div_factor(1e4);
  }
}

}  // namespace capstan::training::spec
