#include "training/spec/job_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "training/codec/local_uri.h"
#include "training/spec/nearest.h"
#include "training/spec/validate.h"
#include "training/spec/yaml_tree.h"

namespace capstan::training::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGood[] = R"(version: 1
name: lenet-fmnist
resources: {num_workers: 2, gpus_per_worker: 1, num_shards: 2}
model: {name: lenet_d2l, num_classes: 10, initializer: {name: normal, scale: 0.01}}
data: {uri: file:///data/fashion-mnist, format: idx}
kvstore: {type: dist_sync}
training:
  epochs: 10
  global_batch_size: 256
  optimizer: {name: sgd, learning_rate: 0.2}
  seed: 42
)";

std::string Errors(absl::string_view text) {
  return FormatErrors("job.yaml", ParseJobFile(text).errors);
}

// kGood with one piece replaced.
std::string With(absl::string_view from, absl::string_view to) {
  EXPECT_TRUE(absl::StrContains(kGood, from)) << from;
  return absl::StrReplaceAll(kGood, {{from, to}});
}

TEST(JobFileTest, ReadsEveryKindOfValue) {
  const JobFile file =
      ParseJobFile(absl::StrCat(kGood, "labels: {team: vision}\nlimits: {stall_timeout: 5m}\n"));
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
  EXPECT_EQ(file.spec.name(), "lenet-fmnist");
  EXPECT_EQ(file.spec.resources().num_workers(), 2);
  EXPECT_EQ(file.spec.model().initializer().name(), "normal");
  EXPECT_DOUBLE_EQ(file.spec.model().initializer().scale(), 0.01);
  EXPECT_EQ(file.spec.training().global_batch_size(), 256);
  EXPECT_EQ(file.spec.training().seed(), 42u);
  EXPECT_EQ(file.spec.labels().at("team"), "vision");
  EXPECT_DOUBLE_EQ(file.spec.limits().stall_timeout_seconds(), 300);
}

// The name begins the job's id, which is an argument of commands.
TEST(JobFileTest, ANameDoesNotBeginWithADash) {
  EXPECT_THAT(ParseJobFile(With("name: lenet-fmnist", "name: 7-lenet-")).errors, IsEmpty());
  EXPECT_THAT(FormatErrors("f", ParseJobFile(With("name: lenet-fmnist", "name: -lenet")).errors),
              testing::HasSubstr("'name'"));
}

TEST(JobFileTest, ScalarInitializerAndPeriods) {
  const JobFile file =
      ParseJobFile(With("initializer: {name: normal, scale: 0.01}", "initializer: he") +
                   "evaluation: {every: 2 epochs}\n");
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
  EXPECT_EQ(file.spec.model().initializer().name(), "he");
  EXPECT_EQ(file.spec.evaluation().every().epochs(), 2);
}

TEST(JobFileTest, UnknownFieldNamesPlaceAndSuggestion) {
  EXPECT_EQ(Errors(With("  epochs: 10", "  epoches: 10")),
            "job.yaml:8:3: error: unknown field 'training.epoches' (did you mean 'epochs'?)\n");
  EXPECT_EQ(Errors(absl::StrCat(kGood, "zzzzzzzz: 1\n")),
            "job.yaml:12:1: error: unknown field 'zzzzzzzz'\n");
}

TEST(JobFileTest, ASuggestionIsAtMostTwoLettersAway) {
  const auto says = [](const char* key) { return Errors(absl::StrCat(kGood, key, ": 1\n")); };
  EXPECT_THAT(says("limit"), HasSubstr("(did you mean 'limits'?)"));    // one letter missing
  EXPECT_THAT(says("llimits"), HasSubstr("(did you mean 'limits'?)"));  // one letter too many
  EXPECT_THAT(says("lomets"), HasSubstr("(did you mean 'limits'?)"));   // two wrong letters
  EXPECT_THAT(says("lomotz"), HasSubstr("unknown field 'lomotz'\n"));
  EXPECT_THAT(says("pata"), HasSubstr("(did you mean 'data'?)"));
  EXPECT_THAT(says("nam"), HasSubstr("(did you mean 'name'?)"));
  EXPECT_THAT(Errors(With("seed: 42", "accumulate_step: 1")),
              HasSubstr("(did you mean 'accumulate_steps'?)"));
  // Refused keys are suggested, too.
  EXPECT_THAT(says("queu"), HasSubstr("(did you mean 'queue'?)"));
  EXPECT_THAT(Errors(With("type: dist_sync", "type: dist_sync, max_stalenes: 0")),
              HasSubstr("(did you mean 'max_staleness'?)"));
}

TEST(JobFileTest, OfSeveralKeysTheNearestIsSuggested) {
  const auto says = [](const char* key) {
    return Errors(With("learning_rate: 0.2", absl::StrCat("learning_rate: 0.2, ", key, ": 1")));
  };
  EXPECT_THAT(says("beta1x"), HasSubstr("(did you mean 'beta1'?)"));  // beta2 is two letters away
  EXPECT_THAT(says("beta2x"), HasSubstr("(did you mean 'beta2'?)"));
  EXPECT_THAT(says("beta3"), HasSubstr("(did you mean 'beta1'?)"));  // the first of equally near
  // Not the word itself, because then something else is wrong.
  EXPECT_EQ(Nearest("beta1", {"beta2", "beta1"}), "");
  EXPECT_EQ(Nearest("beta1x", {"beta2", "beta1"}), "beta1");
  // Not a name with which it shares no letter.
  EXPECT_THAT(Errors("model: {graph: {nodes: [{zz: 1}]}}\n"),
              HasSubstr("unknown field 'model.graph.nodes[0].zz'\n"));
}

TEST(JobFileTest, LongValuesAreCutInErrors) {
  const auto says = [](size_t size) {
    return Errors(With("seed: 42", absl::StrCat("seed: ", std::string(size, 'x'))));
  };
  EXPECT_THAT(says(80), HasSubstr(absl::StrCat("found '", std::string(80, 'x'), "'\n")));
  EXPECT_THAT(says(81), HasSubstr(absl::StrCat("found '", std::string(80, 'x'), "...'\n")));
}

TEST(JobFileTest, AllErrorsAreReportedAtOnceInTheOrderOfTheFile) {
  const std::string text = R"(version: 1
training:
  epoches: 3
  optimizer:
    name: sgd
    learning_rate: 1e-2x
)";
  EXPECT_EQ(
      Errors(text),
      "job.yaml:3:3: error: unknown field 'training.epoches' (did you mean 'epochs'?)\n"
      "job.yaml:6:20: error: 'training.optimizer.learning_rate' must be a number, found '1e-2x'\n");
}

TEST(JobFileTest, ValuesOutOfRangeAreReportedBesideUnknownKeysAndWrongTypes) {
  EXPECT_EQ(Errors(R"(version: 2
name: Big
resources: {num_worker: 2, num_shards: 300, lanes: many}
model: {name: lenet, initializer: nonsense}
training:
  epoches: 3
  global_batch_size: 0
recovery: {backoff: {initial: 2d, max: soon}}
)"),
            "job.yaml:1:10: error: 'version' must be 1, found 2\n"
            "job.yaml:2:7: error: 'name' must be 1 to 63 of a-z, 0-9 and '-', not beginning with "
            "'-', found 'Big'\n"
            "job.yaml:3:13: error: unknown field 'resources.num_worker' (did you mean "
            "'num_workers'?)\n"
            "job.yaml:3:40: error: 'resources.num_shards' must be between 1 and 256, found 300\n"
            "job.yaml:3:52: error: 'resources.lanes' must be a whole number, found 'many'\n"
            "job.yaml:4:35: error: 'model.initializer.name' must be one of xavier, he, normal, "
            "uniform, zeros, found 'nonsense'\n"
            "job.yaml:6:3: error: unknown field 'training.epoches' (did you mean 'epochs'?)\n"
            "job.yaml:7:22: error: 'training.global_batch_size' must be between 1 and 2147483647, "
            "found 0\n"
            "job.yaml:8:31: error: 'recovery.backoff.initial' must be between 0 and 86400, found "
            "172800\n"
            "job.yaml:8:40: error: 'recovery.backoff.max' must be a duration like 30s, 5m, 4h or "
            "7d, found 'soon'\n");
}

// Each file has one mistake, and rules that would report another key because of it.
TEST(JobFileTest, NothingIsReportedThatOnlyFollowsFromAnotherError) {
  const auto count = [](const std::string& text) { return ParseJobFile(text).errors.size(); };
  EXPECT_EQ(count(With("num_workers: 2", "num_worker: 2, min_workers: 2")), 1u);
  EXPECT_EQ(count(With("num_workers: 2", "num_workers: two")), 1u);
  EXPECT_EQ(count(With("type: dist_sync", "tpye: dist_sync")), 1u);
  EXPECT_EQ(count(With("version: 1", "version: one")), 1u);
  EXPECT_EQ(count(With("version: 1", "version: [1]")), 1u);
  EXPECT_EQ(count(With("name: normal, scale", "nme: normal, scale")), 1u);
  EXPECT_EQ(count(With("learning_rate: 0.2",
                       "learning_rate: x, lr_schedule: {name: cosine, min_rate: 0.1}")),
            1u);
  EXPECT_EQ(count(With("num_shards: 2}", "num_shards: 2, lanes: 2, lane_weights: [1, x]}")), 1u);
  EXPECT_EQ(count(With("type: dist_sync", "type: dist_sync, push_timeout: 2s")), 1u);
  // The lanes of a step are counted once the file is right otherwise.
  EXPECT_EQ(count(With("seed: 42", "accumulate_steps: 1024")), 1u);
  EXPECT_EQ(count(With("seed: 42", "seed: x\n  accumulate_steps: 1024")), 1u);
  EXPECT_EQ(count(With("seed: 42", "? [a]\n  : 42")), 1u);
  EXPECT_EQ(count(With("seed: 42", "? {a: 1, b: [2]}\n  : 42")), 1u);
}

// A text that cannot be read leaves no half-read key. A text without keys is not also reported as
// empty.
TEST(JobFileTest, WhatIsNotYamlIsReportedAloneAndWithItsPlace) {
  EXPECT_EQ(Errors(With("seed: 42", "seed: @x")),
            "job.yaml:11:9: error: not YAML: unknown token\n");
  EXPECT_EQ(Errors("@"), "job.yaml:1:1: error: not YAML: unknown token\n");
  EXPECT_EQ(Errors("version: 1\nname: \xff\n"), "job.yaml:2:1: error: this line is not UTF-8\n");
  EXPECT_THAT(Errors("a: 1\n---\nb: 2\n"),
              HasSubstr("job.yaml:3:1: error: one document is expected, a second one begins here"));
}

// Also for an entry of a list beside another error.
TEST(JobFileTest, AnEntryOfAListIsReportedWithItsPlace) {
  EXPECT_EQ(Errors(R"(version: 1
name: j
model: {name: lenet}
data:
  uri: /d
  format: idx
  transforms:
    - {random_flip: {}}
    - {}
training: {epochs: x, global_batch_size: 8, optimizer: {learning_rate: 0.1}}
)"),
            "job.yaml:9:7: error: 'data.transforms[1]' must name one of random_crop, random_flip, "
            "normalize, resize, cutout\n"
            "job.yaml:10:20: error: 'training.epochs' must be a whole number, found 'x'\n");
}

// A value from --set has no position in the file.
TEST(JobFileTest, AnOverrideHasNoPlaceInTheFile) {
  EXPECT_EQ(FormatErrors("j", ParseJobFile(kGood, {{"data", "{uri: /d, format: nope}"}}).errors),
            "j: error: 'data.format' must be one of idx, cifar10_bin, npz, csv, libsvm, "
            "image_folder, rec, text, synthetic_digits, found 'nope'\n");
  EXPECT_EQ(
      FormatErrors(
          "j", ParseJobFile(kGood, {{"data.transforms", "[{random_flip: {axis: up}}]"}}).errors),
      "j: error: 'data.transforms[0].random_flip.axis' must be one of horizontal, vertical, "
      "found 'up'\n");
  EXPECT_THAT(FormatErrors("j", ParseJobFile(kGood, {{"data", "{ur: /d}"}}).errors),
              HasSubstr("j: error: unknown field 'data.ur' (did you mean 'uri'?)\n"));
}

TEST(JobFileTest, KeysWithDotsAreNoKeys) {
  for (const char* key : {"training.seed", "recovery.backoff", "outputs.metrics",
                          "training.gradient_clip_norm", "checkpoint.resume"}) {
    EXPECT_THAT(Errors(absl::StrCat(kGood, key, ": 1\n")),
                HasSubstr(absl::StrCat("unknown field '", key, "'")));
  }
  EXPECT_THAT(Errors(absl::StrCat(kGood, "outputs: {metrics.jsonl: true}\n")),
              HasSubstr("unknown field 'outputs.metrics.jsonl'"));
}

TEST(JobFileTest, OutputsAreGroups) {
  const auto says = [](const char* outputs) {
    return Errors(absl::StrCat(kGood, "outputs: ", outputs, "\n"));
  };
  EXPECT_EQ(says("{metrics: {jsonl: true, tensorboard: false}}"), "");
  EXPECT_THAT(says("5"), HasSubstr("'outputs' must be a group of keys, found '5'"));
  EXPECT_THAT(says("{metrics: 1}"),
              HasSubstr("'outputs.metrics' must be a group of keys, found '1'"));
  EXPECT_THAT(says("{x: {y: 1}}"), HasSubstr("unknown field 'outputs.x'"));
  EXPECT_THAT(says("{metrics: {json: true}}"),
              HasSubstr("unknown field 'outputs.metrics.json' (did you mean 'jsonl'?)"));
}

TEST(JobFileTest, DurationsHaveFourUnits) {
  const auto seconds = [](const char* text) {
    const JobFile file = ParseJobFile(kGood, {{"limits.active_deadline", text}});
    EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors(text, file.errors);
    return file.spec.limits().active_deadline_seconds();
  };
  EXPECT_EQ(seconds("30s"), 30);
  EXPECT_EQ(seconds("1.5m"), 90);
  EXPECT_EQ(seconds("4h"), 14400);
  EXPECT_EQ(seconds("7d"), 604800);
  for (const char* bad : {"\"\"", "30", "s", "-s", "1w", "1 s", "1e400s"}) {
    EXPECT_THAT(FormatErrors("j", ParseJobFile(kGood, {{"limits.active_deadline", bad}}).errors),
                HasSubstr("'limits.active_deadline' must be a duration like 30s, 5m, 4h or 7d"))
        << bad;
  }
}

TEST(JobFileTest, AFileHasAtMostOneMebibyte) {
  const std::string whole = absl::StrCat(kGood, "#", std::string((1 << 20) - sizeof kGood, 'x'));
  ASSERT_EQ(whole.size(), size_t{1} << 20);
  EXPECT_EQ(Errors(whole), "");
  EXPECT_EQ(Errors(whole + "x"),
            "job.yaml:1:1: error: a job file has at most 1048576 bytes, this one has 1048577\n");
}

TEST(YamlTreeTest, ValuesAndLevelsHaveLimits) {
  const auto says = [](const std::string& text) {
    std::vector<YamlError> errors;
    ParseYaml(text, errors);
    return errors.empty() ? "" : errors[0].message;
  };
  const auto list = [](int count) {
    std::string text = "[a";
    for (int i = 1; i < count; ++i) text += ",a";
    return text + "]";
  };
  const auto deep = [](int levels) {
    return absl::StrCat(std::string(levels, '['), "a", std::string(levels, ']'));
  };
  const std::string limits = "the file is too large: the limits are 20000 values and 32 levels";
  EXPECT_EQ(says(list(kMaxYamlNodes - 1)), "");  // plus the list itself
  EXPECT_EQ(says(list(kMaxYamlNodes)), limits);
  EXPECT_EQ(says(deep(kMaxYamlDepth)), "");
  EXPECT_EQ(says(deep(kMaxYamlDepth + 1)), limits);
}

TEST(JobFileTest, DuplicateKeysAnchorsAliasesAndTagsAreRefused) {
  EXPECT_THAT(Errors(With("  seed: 42", "  seed: 42\n  seed: 43")),
              HasSubstr("job.yaml:12:3: error: duplicate key 'seed'"));
  EXPECT_THAT(Errors(With("seed: 42", "seed: &a 42")), HasSubstr("an anchor"));
  EXPECT_THAT(Errors("a: &a [*a]\n"), HasSubstr("an alias"));
  EXPECT_THAT(Errors(With("seed: 42", "seed: !!int 42")), HasSubstr("a tag"));
  EXPECT_THAT(Errors(With("seed: 42", "? [a]\n  : 42")), HasSubstr("a key must be a plain word"));
}

TEST(JobFileTest, NumbersAreDecimalAndNothingElse) {
  for (const char* bad : {"010", ".nan", ".inf", "0x10", "1_000", "\"4x\"", "4.5", "--", "true",
                          "[1]", "{a: 1}", "~"}) {
    EXPECT_THAT(Errors(With("seed: 42", absl::StrCat("seed: ", bad))),
                HasSubstr("'training.seed' must be"))
        << bad;
  }
  EXPECT_EQ(Errors(With("seed: 42", "seed: -")),
            "job.yaml:11:9: error: not YAML: illegal block entry\n");
  for (const char* bad : {".nan", ".inf", "1e999", "0.2.3", "'0.2.3'"}) {
    EXPECT_THAT(Errors(With("learning_rate: 0.2", absl::StrCat("learning_rate: ", bad))),
                HasSubstr("'training.optimizer.learning_rate' must be"))
        << bad;
  }
  EXPECT_THAT(Errors(With("epochs: 10", "epochs: 99999999999999999999")),
              HasSubstr("'training.epochs' must be between"));
}

// A value in quotes is a text, whatever it looks like.
TEST(JobFileTest, ANumberInQuotesIsToldHowToBeOne) {
  EXPECT_EQ(Errors(With("seed: 42", "seed: \"42\"")),
            "job.yaml:11:9: error: 'training.seed' is the text \"42\"; write 42 without quotes\n");
  EXPECT_EQ(Errors(With("learning_rate: 0.2", "learning_rate: '1e-2'")),
            "job.yaml:10:41: error: 'training.optimizer.learning_rate' is the text \"1e-2\"; write "
            "1e-2 without quotes\n");
  const auto with = [](const char* key, const char* value) {
    return FormatErrors("j", ParseJobFile(kGood, {{key, value}}).errors);
  };
  EXPECT_EQ(with("version", "'1'"),
            "j: error: 'version' is the text \"1\"; write 1 without quotes\n");
  EXPECT_EQ(with("data.shuffle", "\"true\""),
            "j: error: 'data.shuffle' is the text \"true\"; write true without quotes\n");
  EXPECT_EQ(with("resources.devices", "['0', 1]"),
            "j: error: 'resources.devices' is the text \"0\"; write 0 without quotes\n");
  EXPECT_EQ(with("resources.replicas", "'1'"),
            "j: error: 'resources.replicas' is the text \"1\"; write 1 without quotes\n");
  // Values that would be wrong even without quotes, and values that are a text anyway.
  EXPECT_EQ(with("training.seed", "'010'"),
            "j: error: 'training.seed' must be a whole number, found '010'\n");
  EXPECT_EQ(with("data.shuffle", "'yes'"),
            "j: error: 'data.shuffle' must be true or false, found 'yes'\n");
  EXPECT_EQ(with("checkpoint.resume", "'auto'"), "");
}

TEST(JobFileTest, ATabThatIndentsIsNamedWithItsPlace) {
  EXPECT_EQ(Errors("version: 1\nmodel:\n\tname: lenet\n"),
            "job.yaml:3:1: error: there is a tab before 'name': YAML indents only with spaces\n");
  EXPECT_EQ(
      Errors("version: 1\nmodel:\n  name: lenet\n  \tnum_classes: 10\n"),
      "job.yaml:4:3: error: there is a tab before 'num_classes': YAML indents only with spaces\n");
  EXPECT_EQ(
      Errors("\tversion: 1\n"),
      "job.yaml:1:1: error: there is a tab before 'version': YAML indents only with spaces\n");
  // A tab after a key or in a comment is not indentation, and a tab after the error did not cause
  // it.
  EXPECT_EQ(Errors("\t# a comment\nversion:\t1\nname: @\n\tx: 1\n"),
            "job.yaml:3:7: error: not YAML: unknown token\n");
}

TEST(JobFileTest, WhereAKeyStood) {
  const JobFile file = ParseJobFile(kGood, {{"training.seed", "7"}});
  EXPECT_EQ(MarkOf(file.marks, "resources.num_workers").line, 3);
  EXPECT_EQ(MarkOf(file.marks, "resources.num_workers").column, 26);
  EXPECT_EQ(MarkOf(file.marks, "training.optimizer.lr_schedule.warmup").line, 10);  // its group
  EXPECT_EQ(MarkOf(file.marks, "training.seed").line, 0);
  EXPECT_EQ(MarkOf(file.marks, "queue").line, 0);
}

TEST(JobFileTest, NumbersMayHaveAnExponentAndCountsMayNot) {
  for (const auto& [text, value] : std::vector<std::pair<const char*, double>>{
           {"1e-3", 0.001}, {"2.5E+2", 250}, {"3e0", 3}, {"0.5e1", 5}, {"12E2", 1200}}) {
    const JobFile file =
        ParseJobFile(With("learning_rate: 0.2", absl::StrCat("learning_rate: ", text)));
    ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors(text, file.errors);
    EXPECT_DOUBLE_EQ(file.spec.training().optimizer().learning_rate(), value) << text;
  }
  for (const char* bad : {"1e", "1e+", "1e-", "e3", "1.e3", ".5e1", "1e3.0", "+1e3", "1e 3"}) {
    EXPECT_THAT(Errors(With("learning_rate: 0.2", absl::StrCat("learning_rate: ", bad))),
                HasSubstr("'training.optimizer.learning_rate' must be a number"))
        << bad;
  }
  EXPECT_THAT(Errors(With("epochs: 10", "epochs: 1e1")),
              HasSubstr("'training.epochs' must be a whole number"));
}

TEST(JobFileTest, StoragePathIsAFolderOfThisMachine) {
  const auto with = [](const char* path) {
    return ParseJobFile(absl::StrCat(kGood, "checkpoint: {storage_path: '", path, "'}\n"));
  };
  for (const char* good : {"file:///out/jobs", "/out/jobs", "out"}) {
    const JobFile file = with(good);
    EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors(good, file.errors);
    EXPECT_EQ(file.spec.checkpoint().storage_path(), good);
  }
  for (const char* bad : {"http://h/x", "file://host/x", "/out/../etc", ""}) {
    EXPECT_THAT(FormatErrors("j", with(bad).errors), HasSubstr("'checkpoint.storage_path' "))
        << bad;
  }
}

TEST(JobFileTest, InitialWeightsAreAFileOfThisMachine) {
  const auto with = [](const char* path) {
    return FormatErrors("j", ParseJobFile(kGood, {{"model.initial_weights", path}}).errors);
  };
  for (const char* good : {"file:///w/a.safetensors", "/w/a.safetensors", "a"}) {
    EXPECT_EQ(with(good), "");
  }
  EXPECT_EQ(with("s3://b/w"),
            "j: error: 'model.initial_weights' must begin with file://, found 's3://b/w'\n");
  EXPECT_EQ(with("/w/../x"),
            "j: error: 'model.initial_weights' must not hold '..', found '/w/../x'\n");
}

TEST(ValidateTest, EveryRequiredKeyIsNamed) {
  for (const char* key : {"model.name", "data.format", "data.uri", "training.optimizer",
                          "training.optimizer.learning_rate", "model.initializer.scale"}) {
    const JobFile file = ParseJobFile(kGood, {{key, "null"}});
    ASSERT_EQ(file.errors.size(), 1u) << key << FormatErrors("j", file.errors);
    EXPECT_THAT(file.errors[0].message, HasSubstr(absl::StrCat("'", key, "' is required"))) << key;
  }
  const auto error = [](const char* key, const char* value) {
    const JobFile file = ParseJobFile(kGood, {{key, value}});
    EXPECT_EQ(file.errors.size(), 1u) << FormatErrors("j", file.errors);
    return file.errors.empty() ? "" : file.errors[0].message;
  };
  EXPECT_EQ(error("version", "null"), "'version' is missing: write version: 1");
  EXPECT_EQ(error("version", "0"), "'version' must be 1, found 0");
  EXPECT_THAT(error("name", "null"), HasSubstr("'name' must be 1 to 63 of"));
  EXPECT_EQ(error("training.epochs", "null"),
            "'training.epochs' or 'training.max_steps' is required");
  EXPECT_THAT(error("training.global_batch_size", "null"),
              HasSubstr("'training.global_batch_size' is required (or"));
  EXPECT_EQ(error("training.optimizer.lr_schedule", "step"),
            "'training.optimizer.lr_schedule.every' is required");
  EXPECT_THAT(
      ParseJobFile(kGood, {{"training.epochs", "null"}, {"training.max_steps", "5"}}).errors,
      IsEmpty());
}

TEST(ValidateTest, DevicesAreListedOnceEachAndAsManyAsAreUsed) {
  const auto errors = [](const char* resources) {
    return Errors(absl::StrReplaceAll(kGood, {{"num_workers: 2, gpus_per_worker: 1", resources}}));
  };
  EXPECT_EQ(errors("num_workers: 2, gpus_per_worker: 2, devices: [63, 0]"), "");
  EXPECT_THAT(errors("num_workers: 2, devices: [3, 1, 3]"),
              HasSubstr("'resources.devices' lists device 3 twice"));
  EXPECT_THAT(errors("num_workers: 2, devices: [64]"),
              HasSubstr("'resources.devices' takes indices between 0 and 63, found 64"));
  EXPECT_THAT(errors("num_workers: 2, devices: [-1]"), HasSubstr("found -1"));
  EXPECT_THAT(errors("num_workers: 2, gpus_per_worker: 3, devices: [0, 1]"),
              HasSubstr("'resources.devices' lists 2 devices, gpus_per_worker is 3"));
}

TEST(JobFileTest, EveryRangeNamesFieldValueAndLimit) {
  EXPECT_EQ(
      Errors(With("num_workers: 2", "num_workers: 10000")),
      "job.yaml:3:26: error: 'resources.num_workers' must be between 1 and 1024, found 10000\n");
  EXPECT_THAT(Errors(With("name: lenet-fmnist", "name: ../../x")),
              HasSubstr("'name' must be 1 to 63 of a-z, 0-9 and '-'"));
  EXPECT_THAT(Errors(With("type: dist_sync", "type: nccl")),
              HasSubstr("'kvstore.type' 'nccl' is not supported in this version"));
  EXPECT_THAT(Errors(With("name: lenet_d2l", "name: resnet101_v1")),
              HasSubstr("'model.name' must be one of alexnet, gpt_nano, lenet, lenet_d2l, "));
  EXPECT_THAT(Errors(With("type: dist_sync", "type: local")),
              HasSubstr("'resources.num_workers' must be 1"));
  EXPECT_THAT(Errors(With("file:///data/fashion-mnist", "http://h/x")),
              HasSubstr("'data.uri' must begin with file://"));
  EXPECT_THAT(Errors(With("file:///data/fashion-mnist", "file:///data/../etc")),
              HasSubstr("must not hold '..'"));
  EXPECT_THAT(Errors(With("  global_batch_size: 256", "  global_batch_size: 0")),
              HasSubstr("must be between 1 and"));
  EXPECT_THAT(
      Errors(With("  global_batch_size: 256", "  global_batch_size: 8\n  batch_size_per_gpu: 8")),
      HasSubstr("exclude each other"));
}

TEST(JobFileTest, OverridesReplaceAndAreChecked) {
  const JobFile file =
      ParseJobFile(kGood, {{"training.epochs", "3"}, {"data", "{format: synthetic_digits}"}});
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
  EXPECT_EQ(file.spec.training().epochs(), 3);
  EXPECT_EQ(file.spec.data().format(), "synthetic_digits");
  EXPECT_FALSE(file.spec.data().has_uri());
  EXPECT_EQ(FormatErrors("j", ParseJobFile(kGood, {{"training.epochs", "three"}}).errors),
            "j: error: 'training.epochs' must be a whole number, found 'three'\n");
  EXPECT_THAT(FormatErrors("j", ParseJobFile(kGood, {{"training..x", "1"}}).errors),
              HasSubstr("the key must be like"));
}

TEST(JobFileTest, ANullTakesAKeyOut) {
  const JobFile file = ParseJobFile(
      kGood, {{"resources.num_shards", "null"}, {"kvstore", "~"}, {"checkpoint.every", "null"}});
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
  EXPECT_FALSE(file.spec.resources().has_num_shards());
  EXPECT_EQ(file.spec.resources().num_workers(), 2);
  EXPECT_FALSE(file.spec.has_kvstore());
  EXPECT_THAT(FormatErrors("j", ParseJobFile(kGood, {{"resources.num_shard", "null"}}).errors),
              HasSubstr("did you mean 'num_shards'?"));
  EXPECT_THAT(FormatErrors("j", ParseJobFile(kGood, {{"training.epochs", "null"}}).errors),
              HasSubstr("training.epochs"));
  EXPECT_THAT(FormatErrors("j", ParseJobFile(kGood, {{"resources.num_shards", ""}}).errors),
              HasSubstr("resources.num_shards"));
}

TEST(JobFileTest, OtherKeysTakeWhatIsDoneAnywayAndNothingElse) {
  EXPECT_EQ(Errors(absl::StrCat(With("{type: dist_sync}", "{type: dist_sync, max_staleness: 0}"),
                                "checkpoint: {resume: auto}\n")),
            "");
  EXPECT_EQ(
      Errors(With("{type: dist_sync}", "{type: dist_sync, gradient_compression: {type: none}}")),
      "");
  EXPECT_EQ(Errors(With("{type: dist_sync}", "{type: dist_sync, update_on_kvstore: false}")), "");
  for (const char* bad : {"true", "{type: false}"}) {
    EXPECT_THAT(
        FormatErrors("j", ParseJobFile(kGood, {{"evaluation.smaller_is_better", bad}}).errors),
        HasSubstr(
            "'evaluation.smaller_is_better' is not supported in this version (only false is)"))
        << bad;
  }
}

TEST(JobFileTest, CheckpointsTakeStepsEpochsOrADuration) {
  const auto every = [](const char* text) {
    const JobFile file = ParseJobFile(absl::StrCat(kGood, "checkpoint: {every: ", text, "}\n"));
    EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
    return file.spec.checkpoint();
  };
  EXPECT_EQ(every("500 steps").every().steps(), 500);
  EXPECT_EQ(every("1 epoch").every().epochs(), 1);
  EXPECT_FALSE(every("30s").has_every());
  EXPECT_DOUBLE_EQ(every("2m").every_seconds(), 120);
  EXPECT_TRUE(every("never").has_every_seconds());
  EXPECT_DOUBLE_EQ(every("never").every_seconds(), 0);
  EXPECT_EQ(Errors(absl::StrCat(kGood, "checkpoint: {every: often}\n")),
            "job.yaml:12:21: error: 'checkpoint.every' must be like '10 epochs', '500 steps', "
            "'30s' or 'never', found 'often'\n");
  EXPECT_THAT(Errors(absl::StrCat(kGood, "checkpoint: {every: 0.5s}\n")),
              HasSubstr("'checkpoint.every' must be between 1 and"));
  EXPECT_THAT(Errors(absl::StrCat(kGood, "checkpoint: {every_seconds: 30s}\n")),
              HasSubstr("unknown field 'checkpoint.every_seconds'"));
  for (const char* resume : {"never", "lenet-1-500"}) {
    EXPECT_THAT(Errors(absl::StrCat(kGood, "checkpoint: {resume: ", resume, "}\n")),
                HasSubstr("'checkpoint.resume' is not supported in this version (only auto is)"));
  }
}

TEST(JobFileTest, RecoveryAndItsLimits) {
  const JobFile file = ParseJobFile(absl::StrCat(
      kGood,
      "recovery: {max_restarts: 5, backoff: {initial: 10s, max: 5m}, never_retry_on: [Stalled]}\n"
      "limits: {orphan_timeout: 20s}\n"));
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
  EXPECT_EQ(file.spec.recovery().max_restarts(), 5);
  EXPECT_DOUBLE_EQ(file.spec.recovery().backoff_initial_seconds(), 10);
  EXPECT_DOUBLE_EQ(file.spec.recovery().backoff_max_seconds(), 300);
  EXPECT_EQ(file.spec.recovery().never_retry_on(0), "Stalled");
  EXPECT_DOUBLE_EQ(file.spec.limits().orphan_timeout_seconds(), 20);

  const auto errors = [](const char* recovery) {
    return Errors(absl::StrCat(kGood, "recovery: {", recovery, "}\n"));
  };
  EXPECT_EQ(errors("max_restarts: 1001"),
            "job.yaml:12:26: error: 'recovery.max_restarts' must be between 0 and 1000, found "
            "1001\n");
  EXPECT_THAT(errors("backoff: {initial: 10m}, max_restarts: 1"), testing::IsEmpty());
  EXPECT_THAT(errors("backoff: {initial: 10m, max: 5m}"),
              HasSubstr("must not be below 'recovery.backoff.initial', which is 600s, found 300s"));
  EXPECT_THAT(errors("backoff: 10s"), HasSubstr("'recovery.backoff' must be a group of keys"));
  EXPECT_THAT(errors("backoff: {first: 10s}"), HasSubstr("unknown field 'recovery.backoff.first'"));
  EXPECT_THAT(errors("backoff.initial: 10s"), HasSubstr("unknown field"));
  EXPECT_THAT(errors("never_retry_on: [Sunday]"), HasSubstr("'recovery.never_retry_on' must be"));
  EXPECT_THAT(errors("never_retry_on: []"), HasSubstr("'recovery.never_retry_on' is empty"));
  EXPECT_THAT(Errors(With("num_workers: 2,", "num_workers: 2, min_workers: 3,")),
              HasSubstr("'resources.min_workers' must be at most num_workers (2), found 3"));
}

TEST(ValidateTest, PrecisionsAreTakenWhereTheyCanBeCarriedOut) {
  const auto errors = [](const char* training, const char* resources) {
    return Errors(
        absl::StrReplaceAll(kGood, {{"  seed: 42", training}, {"num_shards: 2", resources}}));
  };
  for (const char* good : {"fp32", "tf32", "bf16", "fp16"}) {
    EXPECT_EQ(errors(absl::StrCat("  precision: ", good).c_str(), "num_shards: 2"), "") << good;
  }
  EXPECT_THAT(errors("  precision: fp8", "num_shards: 2"),
              HasSubstr("'training.precision' must be one of fp32, tf32, bf16, fp16"));
  EXPECT_THAT(errors("  precision: bf16", "num_shards: 2, device: cpu"),
              HasSubstr("'training.precision' 'bf16' needs GPUs, 'resources.device' is cpu"));
  EXPECT_EQ(errors("  precision: fp32", "num_shards: 2, device: cpu"), "");
  const auto multi = [](const char* precision, const char* multi_precision) {
    JobFile file = ParseJobFile(kGood, {{"training.precision", precision},
                                        {"training.optimizer.multi_precision", multi_precision}});
    return FormatErrors("j", file.errors);
  };
  EXPECT_EQ(multi("fp16", "true"), "");
  EXPECT_EQ(multi("fp32", "false"), "");
  EXPECT_THAT(multi("bf16", "false"),
              HasSubstr("'training.optimizer.multi_precision' must be true with 'bf16'"));
  EXPECT_THAT(multi("fp16", "false"),
              HasSubstr("'training.optimizer.multi_precision' must be true with 'fp16'"));
}

// Otherwise the services that receive the filled-in spec would refuse it.
TEST(ValidateTest, ShardsThatTheDefaultKvstoreDoesNotUseAreRefused) {
  const auto errors = [](const char* workers_and_shards) {
    return Errors(absl::StrReplaceAll(
        kGood, {{"num_workers: 2, gpus_per_worker: 1, num_shards: 2", workers_and_shards},
                {"kvstore: {type: dist_sync}\n", ""}}));
  };
  EXPECT_EQ(errors("num_workers: 1, num_shards: 2"),
            "job.yaml:3:41: error: 'resources.num_shards' is 2, but one worker's default kvstore "
            "uses no shard; leave it out or set 'kvstore.type' to dist_sync\n");
  EXPECT_THAT(errors("num_shards: 2"), HasSubstr("uses no shard"));
  EXPECT_EQ(errors("num_workers: 2, num_shards: 2"), "");
  EXPECT_EQ(errors("num_workers: 1, num_shards: 1"), "");
}

TEST(JobFileTest, SchedulesAndTheirKeys) {
  const auto with = [](const char* schedule) {
    return ParseJobFile(kGood, {{"training.optimizer.lr_schedule", schedule}});
  };
  for (const char* good :
       {"cosine", "polynomial", "one_cycle", "{name: step, every: 10 epochs}",
        "{name: multi_step, milestones: [30 epochs, 500 steps], factor: 0.2, warmup: 5 steps}",
        "{name: polynomial, power: 0.9, min_rate: 0.001, warmup: 1 epoch}",
        "{name: one_cycle, pct_start: 0.25, div_factor: 10, final_div_factor: 100}"}) {
    JobFile file = with(good);
    ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors(good, file.errors);
    FillDefaults(file.spec);
    EXPECT_THAT(Validate(file.spec), IsEmpty()) << good;
    const JobFile again = ParseJobFile(ToYaml(file.spec));
    ASSERT_THAT(again.errors, IsEmpty()) << ToYaml(file.spec);
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(file.spec, again.spec))
        << ToYaml(file.spec);
  }
  const JobFile file = with("{name: multi_step, milestones: [30 epochs, 500 steps]}");
  EXPECT_EQ(file.spec.training().optimizer().lr_schedule().milestones(0).epochs(), 30);
  EXPECT_EQ(file.spec.training().optimizer().lr_schedule().milestones(1).steps(), 500);

  for (const auto& [bad, message] : std::vector<std::pair<const char*, const char*>>{
           {"linear",
            "name' must be one of constant, step, multi_step, cosine, polynomial, "
            "one_cycle, found 'linear'"},
           {"multi_step", "milestones' is required"},
           {"{name: multi_step, milestones: 5 epochs}", "milestones' must be a list"},
           {"{name: multi_step, milestones: [5]}",
            "milestones' must be like '10 epochs' or '500 steps', found '5'"},
           {"{name: multi_step, milestones: [0 epochs]}",
            "milestones' must be between 1 and 1000000, found 0"},
           {"{name: multi_step, milestones: [1 epoch], every: 1 epoch}",
            "every' is for the schedule 'step' only"},
           {"{name: cosine, milestones: [1 epoch]}",
            "milestones' is for the schedule 'multi_step' only"},
           {"{name: cosine, factor: 0.1}",
            "factor' is for the schedule 'step' or 'multi_step' only"},
           {"{name: step, every: 1 epoch, min_rate: 0.1}",
            "min_rate' is for the schedule 'cosine' or 'polynomial' only"},
           {"{name: polynomial, power: 0}", "power' must be a finite number above 0, found 0"},
           {"{name: cosine, power: 2}", "power' is for the schedule 'polynomial' only"},
           {"{name: one_cycle, pct_start: 1.5}", "pct_start' must be between 0 and 1, found 1.5"},
           {"{name: one_cycle, div_factor: 0.5}",
            "div_factor' must be a finite number of at least 1, found 0.5"},
           {"{name: one_cycle, final_div_factor: 0}", "final_div_factor' must be a finite number"},
           {"{name: one_cycle, warmup: 5 steps}", "warmup' has no meaning for 'one_cycle'"},
       }) {
    EXPECT_THAT(FormatErrors("j", with(bad).errors),
                HasSubstr(absl::StrCat("'training.optimizer.lr_schedule.", message)))
        << bad;
  }
}

TEST(JobFileTest, ReaderThreads) {
  const auto with = [](const char* count) {
    return ParseJobFile(kGood, {{"data.reader_threads", count}});
  };
  EXPECT_EQ(with("8").spec.data().reader_threads(), 8);
  for (const char* bad : {"0", "65"}) {
    EXPECT_THAT(FormatErrors("j", with(bad).errors),
                HasSubstr("'data.reader_threads' must be between 1 and 64, found "));
  }
}

TEST(JobFileTest, TransformsAndTheirKeys) {
  const auto with = [](const std::string& list) {
    return ParseJobFile(kGood, {{"data.transforms", list}});
  };
  JobFile file = ParseJobFile(absl::StrReplaceAll(kGood, {{"format: idx}", R"(format: idx,
  transforms: [{random_crop: {size: 24, padding: 4}}, {random_flip: {}}, {cutout: {size: 8}},
               {normalize: {mean: [0.5], std: [0.25]}}, {resize: {size: 28}}]})"}}));
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
  ASSERT_EQ(file.spec.data().transforms_size(), 5);
  EXPECT_EQ(file.spec.data().transforms(0).random_crop().size(), 24);
  EXPECT_TRUE(file.spec.data().transforms(1).has_random_flip());
  EXPECT_EQ(file.spec.data().transforms(3).normalize().std(0), 0.25);
  FillDefaults(file.spec);
  EXPECT_EQ(file.spec.data().transforms(1).random_flip().axis(), "horizontal");
  EXPECT_EQ(file.spec.data().transforms(0).random_crop().padding(), 4);
  JobFile crop = with("[{random_crop: {size: 24}}]");
  FillDefaults(crop.spec);
  EXPECT_TRUE(crop.spec.data().transforms(0).random_crop().has_padding());
  EXPECT_EQ(crop.spec.data().transforms(0).random_crop().padding(), 0);
  file.spec.mutable_data()->mutable_transforms(1)->mutable_random_flip()->clear_axis();
  const JobFile again = ParseJobFile(ToYaml(file.spec));
  ASSERT_THAT(again.errors, IsEmpty()) << ToYaml(file.spec) << FormatErrors("again", again.errors);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(file.spec, again.spec))
      << ToYaml(file.spec);

  for (const auto& [bad, message] : std::vector<std::pair<std::string, const char*>>{
           {"{random_flip: {}}", "'data.transforms' must be a list"},
           {"[]", "'data.transforms' is empty: leave it out for its default"},
           {"[random_flip]", "'data.transforms[0]' must be a group of keys, found 'random_flip'"},
           {"[{}]",
            "'data.transforms[0]' must name one of random_crop, random_flip, normalize, "
            "resize, cutout"},
           {"[{random_flip: {}, cutout: {size: 2}}]",
            "'data.transforms[0].cutout' and 'data.transforms[0].random_flip' exclude each other"},
           {"[{random_flip: {}}, {randm_crop: {}}]",
            "unknown field 'data.transforms[1].randm_crop' (did you mean 'random_crop'?)"},
           {"[{random_crop: {size: 0}}]",
            "'data.transforms[0].random_crop.size' must be between 1 and 4096, found 0"},
           {"[{random_crop: {padding: -1}}]",
            "'data.transforms[0].random_crop.padding' must be between 0 and 4096, found -1"},
           {"[{random_flip: {axis: depth}}]",
            "'data.transforms[0].random_flip.axis' must be one of horizontal, vertical"},
           {"[{normalize: {mean: [0.5]}}]", "'data.transforms[0].normalize.std' is required"},
           {"[{normalize: {mean: [0.5], std: [0]}}]",
            "'data.transforms[0].normalize.std' takes numbers above 0, found 0"},
           {"[{normalize: {mean: [0.5, 1], std: [1]}}]",
            "'data.transforms[0].normalize.std' has 1 entries, 'mean' has 2"},
           {"[{resize: {}}]", "'data.transforms[0].resize.size' is required"},
           {"[{cutout: {size: 5000}}]",
            "'data.transforms[0].cutout.size' must be between 1 and 4096, found 5000"},
       }) {
    EXPECT_THAT(FormatErrors("j", with(bad).errors), HasSubstr(message)) << bad;
    EXPECT_EQ(with(bad).errors.size(), 1u) << bad << FormatErrors("j", with(bad).errors);
  }
  std::string many = "[{random_flip: {}}";
  for (int i = 1; i < 16; ++i) many += ", {random_flip: {}}";
  EXPECT_THAT(with(many + "]").errors, IsEmpty());
  many += ", {random_flip: {}}";
  EXPECT_THAT(FormatErrors("j", with(many + "]").errors),
              HasSubstr("'data.transforms' has 17 entries, 16 is the limit"));
}

// Every key of docs/interface.md is carried out or refused by name; none is ignored.
TEST(JobFileTest, EveryKnownKeyIsCarriedOutOrRefused) {
  int refused = 0;
  for (const KeyInfo& key : AllKeys()) {
    const JobFile file = ParseJobFile(kGood, {{key.path, "surely-not-a-value"}});
    const std::string text = FormatErrors("j", file.errors);
    if (!key.carried_out) {
      ++refused;
      EXPECT_THAT(text,
                  HasSubstr(absl::StrCat("'", key.path, "' is not supported in this version")));
    } else {
      EXPECT_THAT(text, testing::Not(HasSubstr("unknown field"))) << key.path;
      const bool free_text = key.path == "name" || key.path == "description" ||
                             key.path == "model.initial_weights" || key.path == "data.uri" ||
                             key.path == "checkpoint.storage_path";
      if (!free_text) {
        EXPECT_THAT(text, HasSubstr(key.path)) << key.path << " took a value that it cannot mean";
      }
    }
  }
  EXPECT_GT(refused, 5);
}

TEST(JobFileTest, YamlReadsBackToTheSameSpec) {
  for (const char* every : {"45s", "never", "3 epochs"}) {
    JobFile file = ParseJobFile(
        absl::StrCat(kGood, "description: \"a \\\"b\\\" # c\"\nlabels: {a: \"1\", b: x y}\n",
                     "limits: {active_deadline: 90s}\ncheckpoint: {every: ", every,
                     "}\nrecovery: {backoff: {initial: 0s, max: 7m}}\n"));
    ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
    FillDefaults(file.spec);
    const JobFile again = ParseJobFile(ToYaml(file.spec));
    ASSERT_THAT(again.errors, IsEmpty())
        << ToYaml(file.spec) << FormatErrors("again", again.errors);
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(file.spec, again.spec))
        << ToYaml(file.spec);
    EXPECT_THAT(ToYaml(file.spec), HasSubstr(absl::StrCat("every: ", every, "\n")));
  }
}

TEST(JobFileTest, AnyTextOfAFieldReadsBackAsItself) {
  for (const std::string& text :
       {std::string("two\nlines"), std::string("\n\n"), std::string(" \t "),
        std::string("a\r\n b\r"), std::string("\0\x04\x7f", 3), std::string("\"\\n\\\""),
        std::string("# no comment: [}"), std::string("\u0085\u2028\ufeff\u00e9")}) {
    job::v1::JobSpec spec;
    spec.set_description(text);
    const JobFile again = ParseJobFile(ToYaml(spec));
    EXPECT_EQ(again.spec.description(), text) << ToYaml(spec);
  }
}

TEST(JobFileTest, HostileTextIsRefusedWithoutACrash) {
  EXPECT_THAT(Errors(std::string(5000, '[')), HasSubstr("error"));
  EXPECT_THAT(Errors(std::string(100, '{')), HasSubstr("error"));
  EXPECT_THAT(Errors(std::string("\0\xff\xfe", 3)), HasSubstr("error"));
  EXPECT_THAT(Errors("version: 1\nname: a\ndata: {uri: /\x9c\xa7}\n"),
              HasSubstr(":3:1: error: this line is not UTF-8"));
  EXPECT_THAT(Errors("version: 1\ndescription: \"a\\_b\"\n"),
              HasSubstr(":2:14: error: the escapes"));
  EXPECT_THAT(Errors(std::string(2 << 20, 'a')), HasSubstr("at most 1048576 bytes"));
  EXPECT_THAT(Errors(""), HasSubstr("a job file must be a group of keys, found nothing"));
  EXPECT_THAT(Errors("a: 1\n---\nb: 2\n"), HasSubstr("one document is expected"));
}

TEST(ValidateTest, LocalPathTakesFilesOnly) {
  EXPECT_EQ(*training::LocalPath("file:///a/b"), "/a/b");
  EXPECT_EQ(*training::LocalPath("/a/b"), "/a/b");
  EXPECT_EQ(*training::LocalPath("a/b"), "a/b");
  for (const char* bad :
       {"file://host/a", "s3://a/b", "http://169.254.169.254/", "", "a/../b", "a\nb"}) {
    EXPECT_EQ(training::LocalPath(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

// As Trainer in MXNet: `device`, which does the same as `local` without a GPU.
TEST(ValidateTest, OneWorkersDefaultKvstoreIsDeviceUnlessItIsToUseCpus) {
  const auto type = [](const char* resources, const char* kvstore = "") {
    const std::string text = absl::StrReplaceAll(
        kGood, {{"num_workers: 2, gpus_per_worker: 1, num_shards: 2", resources},
                {"kvstore: {type: dist_sync}\n", kvstore}});
    JobFile file = ParseJobFile(text);
    EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
    FillDefaults(file.spec);
    return file.spec.kvstore().type();
  };
  EXPECT_EQ(type("num_workers: 1"), "device");
  EXPECT_EQ(type("gpus_per_worker: 4"), "device");
  EXPECT_EQ(type("gpus_per_worker: 4, device: gpu"), "device");
  EXPECT_EQ(type("gpus_per_worker: 4, device: cpu"), "local");
  EXPECT_EQ(type("num_workers: 2, device: gpu"), "dist_sync");
  EXPECT_EQ(type("num_workers: 1", "kvstore: {type: local}\n"), "local");
  EXPECT_EQ(type("num_workers: 1", "kvstore: {type: dist}\n"), "dist_sync");
  EXPECT_EQ(type("num_workers: 2", "kvstore: {type: dist_sync_device}\n"), "dist_device_sync");
}

TEST(ValidateTest, DefaultsMakeAWholeValidSpec) {
  JobFile file = ParseJobFile(kGood);
  FillDefaults(file.spec);
  EXPECT_EQ(file.spec.resources().lanes(), 8);
  EXPECT_EQ(file.spec.data().partition(), "global");
  EXPECT_EQ(file.spec.resources().min_workers(), 2);
  EXPECT_EQ(file.spec.checkpoint().keep_latest(), 3);
  EXPECT_DOUBLE_EQ(file.spec.checkpoint().every_seconds(), 30);
  EXPECT_EQ(file.spec.recovery().max_restarts(), 3);
  EXPECT_DOUBLE_EQ(file.spec.recovery().backoff_max_seconds(), 300);
  EXPECT_EQ(file.spec.recovery().never_retry_on_size(), 4);
  EXPECT_DOUBLE_EQ(file.spec.limits().orphan_timeout_seconds(), 600);
  EXPECT_TRUE(file.spec.data().shuffle());
  EXPECT_THAT(Validate(file.spec), IsEmpty());
}

// All defaults, as docs/interface.md lists them.
TEST(ValidateTest, WhatIsLeftOutHasItsDefault) {
  JobFile file = ParseJobFile(R"(version: 1
name: j
model: {name: lenet}
data: {uri: /d, format: idx}
training: {epochs: 1, global_batch_size: 8, optimizer: {learning_rate: 0.1}}
)");
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
  FillDefaults(file.spec);
  EXPECT_EQ(ToYaml(file.spec), R"(version: 1
name: j
resources:
  num_workers: 1
  gpus_per_worker: 1
  lanes: 1
  num_shards: 1
  device: auto
  min_workers: 1
model:
  name: lenet
  num_classes: 10
  initializer:
    name: xavier
data:
  uri: "/d"
  format: idx
  shuffle: true
  partition: global
  prefetch_batches: 2
kvstore:
  type: device
training:
  epochs: 1
  global_batch_size: 8
  loss: softmax_cross_entropy
  optimizer:
    name: sgd
    learning_rate: 0.1
    momentum: 0
    nesterov: false
    weight_decay: 0
    lr_schedule:
      name: constant
    multi_precision: true
  precision: fp32
  seed: 0
  deterministic: true
evaluation:
  every: 1 epoch
  metric: accuracy
checkpoint:
  every: 30s
  keep_latest: 3
  keep_best: 0
  strict: false
limits:
  active_deadline: 0s
  stall_timeout: 300s
  orphan_timeout: 600s
recovery:
  max_restarts: 3
  backoff:
    initial: 1s
    max: 300s
  never_retry_on: [InvalidSpec, GpuOutOfMemory, NonFiniteLoss, DataMissing]
)");
}

TEST(ValidateTest, DefaultsFollowFromOtherKeys) {
  const auto filled = [](const std::vector<std::pair<std::string, std::string>>& keys) {
    JobFile file = ParseJobFile(kGood, keys);
    EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
    FillDefaults(file.spec);
    return file.spec;
  };
  const auto devices = filled({{"resources", "{num_workers: 3, devices: [1, 4]}"}}).resources();
  EXPECT_EQ(devices.gpus_per_worker(), 2);
  EXPECT_EQ(devices.lanes(), 8);
  EXPECT_EQ(devices.min_workers(), 3);
  EXPECT_FALSE(filled({{"resources.device", "gpu"}}).training().deterministic());
  EXPECT_TRUE(filled({{"resources.device", "cpu"}}).training().deterministic());
  const auto digits = filled({{"data", "{format: synthetic_digits}"}}).data();
  EXPECT_EQ(digits.train_samples(), 60000);
  EXPECT_EQ(digits.test_samples(), 10000);
  EXPECT_FALSE(filled({}).data().has_train_samples());
  const auto schedule = [&](const char* text) {
    return filled({{"training.optimizer.lr_schedule", text}}).training().optimizer().lr_schedule();
  };
  EXPECT_DOUBLE_EQ(schedule("{name: step, every: 1 epoch}").factor(), 0.1);
  EXPECT_FALSE(schedule("{name: step, every: 1 epoch}").has_min_rate());
  EXPECT_TRUE(schedule("cosine").has_min_rate());
  EXPECT_DOUBLE_EQ(schedule("cosine").min_rate(), 0);
  EXPECT_FALSE(schedule("cosine").has_factor());
  const auto optimizer = [&](const std::string& name) {
    return filled({{"training.optimizer", absl::StrCat("{name: ", name, ", learning_rate: 1}")}})
        .training()
        .optimizer();
  };
  // The defaults of PyTorch, for ftrl, lars and lamb of MXNet.
  for (const char* name : {"adam", "adamw"}) {
    EXPECT_EQ(optimizer(name).beta1(), 0.9);
    EXPECT_EQ(optimizer(name).beta2(), 0.999);
    EXPECT_EQ(optimizer(name).epsilon(), 1e-8);
    EXPECT_FALSE(optimizer(name).has_alpha());
  }
  EXPECT_EQ(optimizer("adam").weight_decay(), 0);
  EXPECT_EQ(optimizer("adamw").weight_decay(), 0.01);
  EXPECT_EQ(optimizer("rmsprop").alpha(), 0.99);
  EXPECT_EQ(optimizer("rmsprop").epsilon(), 1e-8);
  EXPECT_TRUE(optimizer("rmsprop").has_centered());
  EXPECT_FALSE(optimizer("rmsprop").has_beta1());
  EXPECT_EQ(optimizer("adagrad").epsilon(), 1e-10);
  EXPECT_EQ(optimizer("ftrl").l1(), 0.01);
  EXPECT_EQ(optimizer("ftrl").beta(), 1);
  EXPECT_EQ(optimizer("ftrl").weight_decay(), 0);
  EXPECT_FALSE(optimizer("ftrl").has_epsilon());
  EXPECT_EQ(optimizer("lars").eta(), 0.001);
  EXPECT_EQ(optimizer("lars").epsilon(), 1e-8);
  EXPECT_FALSE(optimizer("lars").has_beta1());
  EXPECT_EQ(optimizer("lamb").beta1(), 0.9);
  EXPECT_EQ(optimizer("lamb").beta2(), 0.999);
  EXPECT_EQ(optimizer("lamb").epsilon(), 1e-6);
  EXPECT_TRUE(optimizer("lamb").bias_correction());
  EXPECT_FALSE(optimizer("lamb").has_lower_bound());
  EXPECT_FALSE(optimizer("lamb").has_upper_bound());
  EXPECT_FALSE(optimizer("adagrad").has_l1());
  EXPECT_FALSE(optimizer("sgd").has_epsilon());
  EXPECT_FALSE(optimizer("sgd").has_decayed());  // unset means all
  EXPECT_DOUBLE_EQ(filled({{"recovery.backoff.initial", "10m"}}).recovery().backoff_max_seconds(),
                   600);
  EXPECT_FALSE(filled({{"checkpoint.every", "9 steps"}}).checkpoint().has_every_seconds());
}

}  // namespace
}  // namespace capstan::training::spec
