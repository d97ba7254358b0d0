// For tests: the world that the fake NVML shows (tests/support/fake_nvml), in its own folder.
#ifndef CAPSTAN_GPU_WORKER_NVML_FAKE_NVML_WORLD_H_
#define CAPSTAN_GPU_WORKER_NVML_FAKE_NVML_WORLD_H_

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "services/files/files.h"

namespace capstan::gpu_worker {

class FakeNvmlWorld {
 public:
  explicit FakeNvmlWorld(const std::string& text) {
    auto dir = services::MakePrivateDir("fake-nvml");
    EXPECT_TRUE(dir.ok()) << dir.status();
    dir_ = *dir;
    Write(text);
    setenv("CAPSTAN_FAKE_NVML", (dir_ + "/world").c_str(), 1);
  }
  ~FakeNvmlWorld() {
    unsetenv("CAPSTAN_FAKE_NVML");
    EXPECT_TRUE(services::RemoveTree("/tmp", dir_).ok());
  }
  FakeNvmlWorld(const FakeNvmlWorld&) = delete;
  FakeNvmlWorld& operator=(const FakeNvmlWorld&) = delete;

  void Write(const std::string& text) {
    const absl::Status status =
        services::WriteFileAtomically(dir_ + "/world", text, {.sync = false});
    EXPECT_TRUE(status.ok()) << status;
  }

  static std::string Library() { return CAPSTAN_FAKE_NVML_LIBRARY; }

 private:
  std::string dir_;
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_NVML_FAKE_NVML_WORLD_H_
