#include "services/flags/flags.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/logging/log.h"

namespace capstan::services {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The flags of a service, one of each kind.
struct Fixture {
  Fixture() {
    flags.AddCommon(common, "127.0.0.1:7090", "127.0.0.1:7091");
    flags.AddAdvertise(common);
    flags.AddAdminSocket(common);
    flags.AddList("devices", devices, "cpu|cuda:N,...", "one slot each");
    flags.AddInt("slots", slots, "slots", "how many", 1, 64);
    flags.AddDuration("lease", lease, "silence that is forgiven", absl::Seconds(1),
                      absl::Minutes(1));
  }
  absl::Status Parse(std::vector<const char*> args) {
    args.insert(args.begin(), "capstan_gpu_worker");
    return flags.TryParse(static_cast<int>(args.size()), args.data());
  }
  std::optional<int> ExitCode(std::vector<const char*> args) {
    args.insert(args.begin(), "capstan_gpu_worker");
    return flags.Parse(static_cast<int>(args.size()), args.data());
  }
  CommonFlags common;
  std::vector<std::string> devices = {"cpu"};
  int64_t slots = 4;
  absl::Duration lease = absl::Seconds(5);
  FlagSet flags{"capstan_gpu_worker", "Trains."};
};

class FlagsTest : public ::testing::Test {
 protected:
  ~FlagsTest() override {
    for (const char* name : {"CAPSTAN_LISTEN", "CAPSTAN_LEASE", "CAPSTAN_INSECURE",
                             "CAPSTAN_DEVICES", "CAPSTAN_LOG_LEVEL"}) {
      unsetenv(name);
    }
    SetLogLevel(kInfo);
  }
};

TEST_F(FlagsTest, DefaultsStayWhenNothingIsGiven) {
  Fixture f;
  ASSERT_TRUE(f.Parse({}).ok());
  EXPECT_EQ(f.common.listen, "127.0.0.1:7090");
  EXPECT_EQ(f.common.http, "127.0.0.1:7091");
  EXPECT_FALSE(f.common.security.insecure);
  EXPECT_THAT(f.devices, ElementsAre("cpu"));
  EXPECT_EQ(f.lease, absl::Seconds(5));
}

TEST_F(FlagsTest, FlagWinsOverVariable) {
  setenv("CAPSTAN_LISTEN", "unix:/run/a", 1);
  setenv("CAPSTAN_LEASE", "7s", 1);
  setenv("CAPSTAN_INSECURE", "true", 1);
  setenv("CAPSTAN_DEVICES", "cuda:0,cuda:1", 1);
  Fixture f;
  const absl::Status status = f.Parse({"--lease", "500ms", "--lease=2s"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(f.common.listen, "unix:/run/a");
  EXPECT_EQ(f.lease, absl::Seconds(2));
  EXPECT_TRUE(f.common.security.insecure);
  EXPECT_THAT(f.devices, ElementsAre("cuda:0", "cuda:1"));
}

TEST_F(FlagsTest, ListsRepeatAndEatNoOtherWord) {
  Fixture f;
  ASSERT_TRUE(f.Parse({"--devices", "cpu,cpu", "--devices", "cuda:0"}).ok());
  EXPECT_THAT(f.devices, ElementsAre("cpu", "cpu", "cuda:0"));
  EXPECT_FALSE(Fixture().Parse({"--devices", "cpu", "stray"}).ok());
  EXPECT_THAT(std::string(Fixture().Parse({"--devices", "cpu,,cpu"}).message()),
              HasSubstr("--devices: got 'cpu,,cpu'"));
}

TEST_F(FlagsTest, EveryErrorIsExitCodeTwo) {
  for (const std::vector<const char*>& args :
       std::vector<std::vector<const char*>>{{"--no-such"},
                                             {"--lease"},
                                             {"--lease", "5"},
                                             {"--lease", "0s"},
                                             {"--lease", "2h"},
                                             {"--lease", "-1s"},
                                             {"--slots", "x"},
                                             {"--slots", "0"},
                                             {"--slots", "65"},
                                             {"--slots", "99999999999999999999"},
                                             {"stray"}}) {
    EXPECT_EQ(Fixture().ExitCode(args), 2) << args[0];
  }
  EXPECT_EQ(Fixture().Parse({"--slots", "65"}).message(),
            "--slots: got '65', want a number from 1 to 64");
  EXPECT_EQ(Fixture().Parse({"--lease", "2h"}).message(), "--lease: got 2h, want 1s to 1m");
  EXPECT_THAT(std::string(Fixture().Parse({"--lease", "5"}).message()),
              HasSubstr("want a duration such as 500ms"));
}

TEST_F(FlagsTest, BadVariableIsAnErrorToo) {
  setenv("CAPSTAN_LEASE", "soon", 1);
  EXPECT_THAT(std::string(Fixture().Parse({}).message()), HasSubstr("--lease: got 'soon'"));
}

TEST_F(FlagsTest, HelpHasDefaultUnitAndVariable) {
  Fixture f;
  EXPECT_EQ(f.Parse({"--help"}).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(f.ExitCode({"-h"}), 0);
  EXPECT_EQ(f.ExitCode({"--version"}), 0);
  EXPECT_THAT(f.flags.Help(),
              AllOf(HasSubstr("  --lease DURATION\n      silence that is forgiven; 1s to 1m\n"
                              "      default 5s, unit ms, s, m, h or d, variable CAPSTAN_LEASE\n"),
                    HasSubstr("default 4, unit slots, variable CAPSTAN_SLOTS"),
                    HasSubstr("--token-file FILE"), HasSubstr("variable CAPSTAN_TOKEN_FILE"),
                    HasSubstr("default false, variable CAPSTAN_INSECURE")));
}

TEST_F(FlagsTest, CommonFlagsAreResolvedOrRefusedByName) {
  Fixture f;
  ASSERT_TRUE(f.Parse({"--listen", "unix:/tmp/x/s", "--http", "off", "--log-level", "debug"}).ok());
  const auto resolved = f.common.Apply();
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->listen.path, "/tmp/x/s");
  EXPECT_FALSE(resolved->http.has_value());
  EXPECT_TRUE(LogEnabled(kDebug));
  const auto refusal = [](std::vector<const char*> args) {
    Fixture other;
    EXPECT_TRUE(other.Parse(std::move(args)).ok());
    return std::string(other.common.Apply().status().message());
  };
  EXPECT_THAT(refusal({}),
              HasSubstr("--listen: 127.0.0.1:7090: listening on TCP needs --tls-cert"));
  EXPECT_THAT(refusal({"--insecure", "--tls-ca", "f"}), HasSubstr("--insecure and --tls-ca"));
  EXPECT_THAT(refusal({"--insecure", "--http", "x"}), HasSubstr("--http: address 'x'"));
  EXPECT_THAT(refusal({"--insecure", "--log-level", "loud"}), HasSubstr("--log-level: "));
  EXPECT_THAT(refusal({"--insecure", "--advertise", "x"}), HasSubstr("--advertise: "));
  EXPECT_THAT(refusal({"--insecure", "--advertise", "a:1", "--interface", "lo"}),
              HasSubstr("exclude each other"));
}

TEST_F(FlagsTest, OthersAreToldAnAddressThatTheyCanGoTo) {
  const auto told = [](std::vector<const char*> args, const char* bound) {
    Fixture f;
    EXPECT_TRUE(f.Parse(std::move(args)).ok());
    const auto address = f.common.Advertised(*ParseEndpoint(bound));
    return address.ok() ? *address : std::string(address.status().message());
  };
  EXPECT_EQ(told({}, "10.0.0.1:7080"), "10.0.0.1:7080");
  EXPECT_EQ(told({"--interface", "lo"}, "0.0.0.0:7080"), "127.0.0.1:7080");
  EXPECT_EQ(told({"--advertise", "node-a:9"}, "0.0.0.0:7080"), "node-a:9");
  EXPECT_EQ(told({"--interface", "lo"}, "unix:/tmp/s"), "unix:/tmp/s");
  EXPECT_THAT(told({}, "[::]:7080"),
              HasSubstr("--listen [::]:7080 is not an address that others can call"));
  EXPECT_THAT(told({"--interface", "none0"}, "0.0.0.0:7080"), HasSubstr("--interface: "));
}

TEST_F(FlagsTest, Durations) {
  EXPECT_EQ(*ParseFlagDuration("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseFlagDuration("1.5s"), absl::Milliseconds(1500));
  EXPECT_EQ(*ParseFlagDuration("7d"), absl::Hours(168));
  EXPECT_EQ(*ParseFlagDuration("0s"), absl::ZeroDuration());
  for (const char* bad : {"", "5", "0", "-1s", "inf", "infd", "nand", "s", "5 s", "5x"}) {
    EXPECT_FALSE(ParseFlagDuration(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace capstan::services
