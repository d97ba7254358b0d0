#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gpu_worker/engine/device/open.h"
#include "gpu_worker/engine/plugin/loader.h"
#include "gtest/gtest.h"

namespace capstan::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Sets a variable during a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { unsetenv(name_); }

 private:
  const char* const name_;
};

LoaderOptions Fake() {
  LoaderOptions options;
  options.driver_library = CAPSTAN_EMPTY_DRIVER;
  options.candidates = {"/nowhere/libcapstan_cuda.so", CAPSTAN_FAKE_PLUGIN};
  return options;
}

// The sentence of a failure.
std::string Sentence(const LoaderOptions& options) {
  const absl::StatusOr<LoadedPlugin> plugin = LoadPlugin(options);
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kUnavailable);
  const std::string text(plugin.status().message());
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  return text;
}

TEST(PluginLoaderTest, OpensTheFirstCandidateThatExists) {
  const Environment devices("CAPSTAN_FAKE_DEVICES", "3");
  const absl::StatusOr<LoadedPlugin> plugin = LoadPlugin(Fake());
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ(plugin->path, CAPSTAN_FAKE_PLUGIN);
  EXPECT_EQ(plugin->device_count, 3);
  EXPECT_EQ(plugin->libraries, "plain loops for tests");
}

TEST(PluginLoaderTest, WithoutADriverNoPluginIsOpened) {
  LoaderOptions options = Fake();
  options.driver_library = "libcapstan_no_such_driver.so.1";
  EXPECT_THAT(Sentence(options), AllOf(HasSubstr("no NVIDIA driver on this machine"),
                                       HasSubstr("libcapstan_no_such_driver.so.1")));
}

TEST(PluginLoaderTest, ABrokenDriverIsQuoted) {
  LoaderOptions options = Fake();
  options.driver_library = "/dev/null";
  EXPECT_THAT(Sentence(options),
              AllOf(HasSubstr("driver cannot be loaded"), HasSubstr("/dev/null")));
}

TEST(PluginLoaderTest, SaysWhereItLooked) {
  LoaderOptions options = Fake();
  options.candidates = {"/nowhere/a.so", "/nowhere/b.so"};
  EXPECT_THAT(Sentence(options),
              AllOf(HasSubstr("no CUDA plug-in"), HasSubstr("/nowhere/a.so and no /nowhere/b.so")));
}

TEST(PluginLoaderTest, AnythingElseIsNoPlugin) {
  LoaderOptions options = Fake();
  options.candidates = {CAPSTAN_EMPTY_DRIVER};
  EXPECT_THAT(Sentence(options), HasSubstr("is not a plug-in of Capstan"));
  options.candidates = {"/dev/null"};
  EXPECT_THAT(Sentence(options), HasSubstr("the plug-in /dev/null cannot be loaded"));
}

TEST(PluginLoaderTest, OldAbiAndOldDriverNameBothVersions) {
  {
    const Environment fail("CAPSTAN_FAKE_FAIL", "old_abi");
    EXPECT_THAT(Sentence(Fake()), HasSubstr(absl::StrCat("its ABI is ", CAPSTAN_PLUGIN_ABI - 1,
                                                         ", this worker's ", CAPSTAN_PLUGIN_ABI)));
  }
  const Environment fail("CAPSTAN_FAKE_FAIL", "old_driver");
  EXPECT_THAT(Sentence(Fake()),
              AllOf(HasSubstr("driver is too old: it is for CUDA 12.4"), HasSubstr("needs 13.0")));
}

TEST(PluginLoaderTest, NoGpuAndNoTable) {
  {
    const Environment devices("CAPSTAN_FAKE_DEVICES", "0");
    EXPECT_THAT(Sentence(Fake()), HasSubstr("CUDA_VISIBLE_DEVICES"));
  }
  {
    const Environment fail("CAPSTAN_FAKE_FAIL", "no_driver");
    EXPECT_THAT(Sentence(Fake()), HasSubstr("finds no GPU to use: no driver"));
  }
  const Environment fail("CAPSTAN_FAKE_FAIL", "no_table");
  EXPECT_THAT(Sentence(Fake()), HasSubstr("no table"));
}

// glibc's message for a missing library of a library.
TEST(PluginLoaderTest, AMissingLibraryOfThePluginIsNamed) {
  EXPECT_EQ(ExplainDlError("/opt/lib/libcapstan_cuda.so",
                           "libcublasLt.so.13: cannot open shared object file: No such file or "
                           "directory"),
            "the plug-in /opt/lib/libcapstan_cuda.so needs the library libcublasLt.so.13, which is "
            "not found; install it or name its folder in LD_LIBRARY_PATH");
  EXPECT_EQ(
      ExplainDlError("/opt/a.so", "/opt/a.so: cannot open shared object file: Permission denied"),
      "the plug-in /opt/a.so cannot be opened: Permission denied");
  EXPECT_THAT(ExplainDlError("/opt/a.so", "/opt/a.so: undefined symbol: cudnnCreate"),
              HasSubstr("cannot be loaded: /opt/a.so: undefined symbol: cudnnCreate"));
}

TEST(PluginLoaderTest, DefaultPlacesAreBesideTheBinaryAndInLib) {
  const LoaderOptions options = DefaultLoaderOptions();
  EXPECT_EQ(options.driver_library, "libcuda.so.1");
  ASSERT_EQ(options.candidates.size(), 2u);
  EXPECT_THAT(options.candidates[0], ::testing::EndsWith("/test/libcapstan_cuda.so"));
  EXPECT_THAT(options.candidates[1], ::testing::EndsWith("/test/../lib/libcapstan_cuda.so"));
  const Environment named("CAPSTAN_CUDA_PLUGIN", "/opt/p.so");
  EXPECT_THAT(DefaultLoaderOptions().candidates, ElementsAre("/opt/p.so"));
}

TEST(OpenDeviceTest, SaysWhyThereIsNoGpu) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has a driver";
  const absl::Status status = OpenDevice("cuda:0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "device cuda:0: no NVIDIA driver on this machine (libcuda.so.1 is not found), so the "
            "CUDA plug-in is not loaded");
}

}  // namespace
}  // namespace capstan::engine
