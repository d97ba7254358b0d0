#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training/optim/adagrad.h"
#include "training/optim/adam.h"
#include "training/optim/average.h"
#include "training/optim/ftrl.h"
#include "training/optim/lamb.h"
#include "training/optim/lars.h"
#include "training/optim/rmsprop.h"
#include "training/optim/sgd.h"
#include "training/spec/resolve.h"
#include "training/spec/rules.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

// A key of the group, and the optimizers that have it.
struct OptimizerKey {
  absl::string_view key;
  bool given;
  std::vector<absl::string_view> optimizers;
};

// If the file names no optimizer, it is sgd.
void CheckKeys(const job::v1::Optimizer& o, Rules& rules) {
  const std::string name = o.has_name() ? o.name() : "sgd";
  // Resolved specs have a momentum of 0 and `nesterov: false` for every optimizer.
  for (const OptimizerKey& key : {
           OptimizerKey{"momentum", o.momentum() != 0, {"sgd", "rmsprop", "lars"}},
           OptimizerKey{"nesterov", o.nesterov(), {"sgd"}},
           OptimizerKey{"beta1", o.has_beta1(), {"adam", "adamw", "lamb"}},
           OptimizerKey{"beta2", o.has_beta2(), {"adam", "adamw", "lamb"}},
           OptimizerKey{
               "epsilon", o.has_epsilon(), {"adam", "adamw", "rmsprop", "adagrad", "lars", "lamb"}},
           OptimizerKey{"alpha", o.has_alpha(), {"rmsprop"}},
           OptimizerKey{"centered", o.has_centered(), {"rmsprop"}},
           OptimizerKey{"l1", o.has_l1(), {"ftrl"}},
           OptimizerKey{"beta", o.has_beta(), {"ftrl"}},
           OptimizerKey{"eta", o.has_eta(), {"lars"}},
           OptimizerKey{"lower_bound", o.has_lower_bound(), {"lamb"}},
           OptimizerKey{"upper_bound", o.has_upper_bound(), {"lamb"}},
           OptimizerKey{"bias_correction", o.has_bias_correction(), {"lamb"}},
       }) {
    bool has = false;
    for (const absl::string_view optimizer : key.optimizers) has = has || optimizer == name;
    if (key.given && !has) {
      rules.Fail(absl::StrCat("training.optimizer.", key.key),
                 absl::StrCat("is for the optimizer '", absl::StrJoin(key.optimizers, "' or '"),
                              "' only, found '", name, "'"));
    }
  }
}

void CheckClipping(const job::v1::Training& training, Rules& rules) {
  const std::string& name = training.optimizer().name();
  const auto refuse = [&](absl::string_view key, absl::string_view why) {
    rules.Fail(key, absl::StrCat("does not go together with the optimizer '", name, "': ", why));
  };
  if (training.has_gradient_clip_value() && (name == "lars" || name == "lamb")) {
    refuse("training.gradient_clip_value", "its trust ratio needs the norm of the whole gradient");
  }
  if (training.has_gradient_clip_norm() && name == "lamb") {
    refuse("training.gradient_clip_norm",
           "shards compute the norm of its direction before they know that of the gradient");
  }
}

template <class Rule>
absl::StatusOr<std::shared_ptr<const Optimizer>> Shared(absl::StatusOr<Rule> rule) {
  if (!rule.ok()) return rule.status();
  return std::make_shared<const Rule>(*std::move(rule));
}

LambOptions LambOptionsOf(const job::v1::Optimizer& o) {
  LambOptions options;
  options.beta1 = o.beta1();
  options.beta2 = o.beta2();
  options.epsilon = o.epsilon();
  options.weight_decay = o.weight_decay();
  options.bias_correction = o.bias_correction();
  if (o.has_lower_bound()) options.lower_bound = o.lower_bound();
  if (o.has_upper_bound()) options.upper_bound = o.upper_bound();
  return options;
}

// The rule that the job file names.
absl::StatusOr<std::shared_ptr<const Optimizer>> RuleOf(const job::v1::ResolvedSpec& spec) {
  const job::v1::Optimizer& o = spec.spec().training().optimizer();
  UpdateOptions update;
  update.decay_weights_only = o.decayed() == "weights";
  update.clip_value = spec.spec().training().gradient_clip_value();
  if (o.name() == "adam" || o.name() == "adamw") {
    AdamOptions options;
    options.beta1 = o.beta1();
    options.beta2 = o.beta2();
    options.epsilon = o.epsilon();
    options.weight_decay = o.weight_decay();
    options.decoupled = o.name() == "adamw";
    return Shared(Adam::Create(options, update));
  }
  if (o.name() == "rmsprop") {
    RmspropOptions options;
    options.alpha = o.alpha();
    options.epsilon = o.epsilon();
    options.momentum = o.momentum();
    options.centered = o.centered();
    options.weight_decay = o.weight_decay();
    return Shared(Rmsprop::Create(options, update));
  }
  if (o.name() == "adagrad") {
    return Shared(Adagrad::Create({o.epsilon(), o.weight_decay()}, update));
  }
  if (o.name() == "ftrl") {
    return Shared(Ftrl::Create({o.l1(), o.beta(), o.weight_decay()}, update));
  }
  if (o.name() == "lars") {
    return Shared(Lars::Create({o.momentum(), o.weight_decay(), o.eta(), o.epsilon()}, update));
  }
  if (o.name() == "lamb") return Shared(Lamb::Create(LambOptionsOf(o), update));
  return Shared(Sgd::Create({o.momentum(), o.nesterov(), o.weight_decay()}, update));
}

}  // namespace

void CheckOptimizer(const job::v1::Training& training, Rules& rules) {
  if (training.has_gradient_clip_norm()) {
    rules.Range("training.gradient_clip_norm", training.gradient_clip_norm(), 1e-30, 1e30);
  }
  if (training.has_gradient_clip_value()) {
    rules.Range("training.gradient_clip_value", training.gradient_clip_value(), 1e-30, 1e30);
  }
  const std::string base = "training.optimizer.";
  rules.Required("training.optimizer", training.has_optimizer());
  if (!training.has_optimizer()) return;
  const job::v1::Optimizer& o = training.optimizer();
  if (o.has_name()) {
    rules.OneOf(base + "name", o.name(),
                {"sgd", "adam", "adamw", "rmsprop", "adagrad", "ftrl", "lars", "lamb"});
  }
  rules.Required(base + "learning_rate", o.has_learning_rate());
  if (o.has_learning_rate()) rules.Finite(base + "learning_rate", o.learning_rate(), 0, false);
  if (o.has_momentum()) rules.Fraction(base + "momentum", o.momentum());
  if (o.nesterov() && o.momentum() == 0) rules.Fail(base + "nesterov", "needs a momentum above 0");
  if (o.has_weight_decay()) rules.Finite(base + "weight_decay", o.weight_decay(), 0, true);
  if (o.has_beta1()) rules.Fraction(base + "beta1", o.beta1());
  if (o.has_beta2()) rules.Fraction(base + "beta2", o.beta2());
  if (o.has_epsilon()) rules.Range(base + "epsilon", o.epsilon(), 1e-30, 1000.0);
  if (o.has_alpha()) rules.Fraction(base + "alpha", o.alpha());
  if (o.has_l1()) rules.Range(base + "l1", o.l1(), 0.0, 1e6);
  if (o.has_beta()) rules.Range(base + "beta", o.beta(), 1e-30, 1000.0);
  if (o.has_eta()) rules.Range(base + "eta", o.eta(), 1e-30, 1000.0);
  if (o.has_upper_bound()) rules.Range(base + "upper_bound", o.upper_bound(), 0.0, 1e30);
  if (o.has_lower_bound()) {
    rules.Range(base + "lower_bound", o.lower_bound(), 0.0,
                o.has_upper_bound() ? o.upper_bound() : 1e30);
  }
  if (o.has_decayed()) rules.OneOf(base + "decayed", o.decayed(), {"all", "weights"});
  CheckKeys(o, rules);
  CheckClipping(training, rules);
  if (o.has_lr_schedule()) CheckSchedule(o, rules);
}

// The defaults of PyTorch, for ftrl, lars and lamb of MXNet.
void FillOptimizerDefaults(job::v1::Optimizer& o) {
  if (o.name() == "adamw" && !o.has_weight_decay()) o.set_weight_decay(0.01);
  if (o.name() == "adam" || o.name() == "adamw") {
    if (!o.has_beta1()) o.set_beta1(AdamOptions().beta1);
    if (!o.has_beta2()) o.set_beta2(AdamOptions().beta2);
    if (!o.has_epsilon()) o.set_epsilon(AdamOptions().epsilon);
  }
  if (o.name() == "rmsprop") {
    if (!o.has_alpha()) o.set_alpha(RmspropOptions().alpha);
    if (!o.has_epsilon()) o.set_epsilon(RmspropOptions().epsilon);
    if (!o.has_centered()) o.set_centered(false);
  }
  if (o.name() == "adagrad" && !o.has_epsilon()) o.set_epsilon(AdagradOptions().epsilon);
  if (o.name() == "lars") {
    if (!o.has_eta()) o.set_eta(LarsOptions().eta);
    if (!o.has_epsilon()) o.set_epsilon(LarsOptions().epsilon);
  }
  if (o.name() == "lamb") {
    if (!o.has_beta1()) o.set_beta1(LambOptions().beta1);
    if (!o.has_beta2()) o.set_beta2(LambOptions().beta2);
    if (!o.has_epsilon()) o.set_epsilon(LambOptions().epsilon);
    if (!o.has_bias_correction()) o.set_bias_correction(LambOptions().bias_correction);
  }
  if (o.name() == "ftrl") {
    if (!o.has_l1()) o.set_l1(FtrlOptions().l1);
    if (!o.has_beta()) o.set_beta(FtrlOptions().beta);
  }
}

absl::StatusOr<std::shared_ptr<const Optimizer>> MakeOptimizer(const job::v1::ResolvedSpec& spec) {
  if (LocalSteps(spec.spec()) > 1) return std::make_shared<const Average>();
  return RuleOf(spec);
}

absl::StatusOr<std::shared_ptr<const Optimizer>> MakeLaneOptimizer(
    const job::v1::ResolvedSpec& spec) {
  if (LocalSteps(spec.spec()) == 1) return nullptr;
  return RuleOf(spec);
}

std::string WhyTheHostUpdates(const job::v1::ResolvedSpec& spec) {
  const absl::StatusOr<std::shared_ptr<const Optimizer>> optimizer = MakeOptimizer(spec);
  // No device gets an optimizer that cannot be made.
  return optimizer.ok() ? WhyTheHostUpdates(spec, **optimizer) : "";
}

std::string WhyTheHostUpdates(const job::v1::ResolvedSpec& spec, const Optimizer& optimizer) {
  const job::v1::Training& training = spec.spec().training();
  if (LocalSteps(spec.spec()) > 1) return "lanes make steps of their own";
  // Devices know no norms: those of a tensor, and of the whole gradient, are added on the host.
  if (training.has_gradient_clip_norm()) return "for gradient_clip_norm";
  if (optimizer.Numbers({}).has_value()) return "";
  return absl::StrCat("for ", training.optimizer().name());
}

}  // namespace capstan::training::spec
