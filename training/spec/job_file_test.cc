#include "training/spec/job_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "training/codec/local_uri.h"
#include "training/spec/validate.h"

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
            "job.yaml:2:7: error: 'name' must be 1 to 63 of a-z, 0-9 and '-', found 'Big'\n"
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

// Each file has one mistake, and rules that would speak of another key because of it.
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
  EXPECT_EQ(
      count(With("num_shards: 2}", "num_shards: 2, devise: gpu}") + "  deterministic: false\n"),
      1u);
  EXPECT_EQ(count(With("num_shards: 2}", "num_shards: 2, lanes: 2, lane_weights: [1, x]}")), 1u);
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
  for (const char* bad : {"010", ".nan", ".inf", "0x10", "1_000", "\"42\"", "4.5", "-", "true",
                          "[1]", "{a: 1}", "~"}) {
    EXPECT_THAT(Errors(With("seed: 42", absl::StrCat("seed: ", bad))),
                HasSubstr("'training.seed' must be"))
        << bad;
  }
  for (const char* bad : {".nan", ".inf", "1e999", "0.2.3", "'0.2'"}) {
    EXPECT_THAT(Errors(With("learning_rate: 0.2", absl::StrCat("learning_rate: ", bad))),
                HasSubstr("'training.optimizer.learning_rate' must be"))
        << bad;
  }
  EXPECT_THAT(Errors(With("epochs: 10", "epochs: 99999999999999999999")),
              HasSubstr("'training.epochs' must be between"));
}

TEST(JobFileTest, EveryRangeNamesFieldValueAndLimit) {
  EXPECT_EQ(
      Errors(With("num_workers: 2", "num_workers: 10000")),
      "job.yaml:3:26: error: 'resources.num_workers' must be between 1 and 1024, found 10000\n");
  EXPECT_THAT(Errors(With("name: lenet-fmnist", "name: ../../x")),
              HasSubstr("'name' must be 1 to 63 of a-z, 0-9 and '-'"));
  EXPECT_THAT(Errors(With("type: dist_sync", "type: dist_async")),
              HasSubstr("'kvstore.type' 'dist_async' is not supported in this version"));
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
  EXPECT_EQ(Errors(absl::StrCat(With("  seed: 42", "  accumulate_steps: 1"),
                                "checkpoint: {resume: auto}\n")),
            "");
  EXPECT_EQ(
      Errors(With("{type: dist_sync}", "{type: dist_sync, gradient_compression: {type: none}}")),
      "");
  for (const char* bad :
       {"accumulate_steps: 2", "accumulate_steps: \"1\"", "accumulate_steps: {type: 1}"}) {
    EXPECT_THAT(
        Errors(With("seed: 42", bad)),
        HasSubstr("'training.accumulate_steps' is not supported in this version (only 1 is)"))
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
  EXPECT_EQ(Errors(absl::StrCat(kGood, "checkpoint: {every: often}\n")),
            "job.yaml:12:21: error: 'checkpoint.every' must be like '10 epochs', '500 steps' or "
            "'30s', found 'often'\n");
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
              HasSubstr("'resources.min_workers' must be between 1 and 2, found 3"));
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
  EXPECT_THAT(multi("fp16", "false"),
              HasSubstr("'training.optimizer.multi_precision' must be true with 'fp16'"));
}

// Else the filled-in spec is refused by the services that get it.
TEST(ValidateTest, ShardsThatTheDefaultKvstoreDoesNotUseAreRefused) {
  const auto errors = [](const char* workers_and_shards) {
    return Errors(absl::StrReplaceAll(
        kGood, {{"num_workers: 2, gpus_per_worker: 1, num_shards: 2", workers_and_shards},
                {"kvstore: {type: dist_sync}\n", ""}}));
  };
  EXPECT_EQ(errors("num_workers: 1, num_shards: 2"),
            "job.yaml:3:41: error: 'resources.num_shards' is 2, but one worker's default kvstore "
            "'local' uses no shard; leave it out or set 'kvstore.type' to dist_sync\n");
  EXPECT_THAT(errors("num_shards: 2"), HasSubstr("uses no shard"));
  EXPECT_EQ(errors("num_workers: 2, num_shards: 2"), "");
  EXPECT_EQ(errors("num_workers: 1, num_shards: 1"), "");
}

// Every key of docs/interface.md is acted on or refused by name; none is ignored.
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
  EXPECT_GT(refused, 12);
}

TEST(JobFileTest, YamlReadsBackToTheSameSpec) {
  JobFile file =
      ParseJobFile(absl::StrCat(kGood,
                                "description: \"a \\\"b\\\" # c\"\nlabels: {a: \"1\", b: x y}\n"
                                "limits: {active_deadline: 90s}\n"
                                "checkpoint: {every: 30s}\nrecovery: {backoff: {max: 7m}}\n"));
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("job.yaml", file.errors);
  FillDefaults(file.spec);
  const JobFile again = ParseJobFile(ToYaml(file.spec));
  ASSERT_THAT(again.errors, IsEmpty()) << ToYaml(file.spec) << FormatErrors("again", again.errors);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(file.spec, again.spec))
      << ToYaml(file.spec);
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

TEST(ValidateTest, DefaultsMakeAWholeValidSpec) {
  JobFile file = ParseJobFile(kGood);
  FillDefaults(file.spec);
  EXPECT_EQ(file.spec.resources().lanes(), 2);
  EXPECT_EQ(file.spec.data().partition(), "global");
  EXPECT_EQ(file.spec.resources().min_workers(), 2);
  EXPECT_EQ(file.spec.checkpoint().keep_latest(), 3);
  EXPECT_EQ(file.spec.recovery().max_restarts(), 3);
  EXPECT_DOUBLE_EQ(file.spec.recovery().backoff_max_seconds(), 300);
  EXPECT_EQ(file.spec.recovery().never_retry_on_size(), 4);
  EXPECT_DOUBLE_EQ(file.spec.limits().orphan_timeout_seconds(), 600);
  EXPECT_TRUE(file.spec.data().shuffle());
  EXPECT_THAT(Validate(file.spec), IsEmpty());
}

}  // namespace
}  // namespace capstan::training::spec
