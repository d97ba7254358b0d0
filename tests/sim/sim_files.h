// A job's files on the simulated disk, for the real code of a task that is its own store.
#ifndef CAPSTAN_TESTS_SIM_SIM_FILES_H_
#define CAPSTAN_TESTS_SIM_SIM_FILES_H_

#include <memory>
#include <string>

#include "param_store/checkpoint/file_store.h"
#include "tests/sim/disk.h"

namespace capstan::sim {

class SimFiles final : public param_store::FileStore {
 public:
  // Borrows the disk. `host` is the writer's number there.
  SimFiles(SimDisk& disk, int host) : disk_(disk), host_(host) {}

  absl::StatusOr<std::unique_ptr<param_store::InputFile>> OpenCheckpointFile(
      const std::string& folder, const std::string& name) override;
  // Always NotFound, because no simulated job begins from a file.
  absl::StatusOr<std::unique_ptr<param_store::InputFile>> OpenInitialWeights(
      const std::string& path, const std::string& name) override;
  absl::StatusOr<common::v1::FileInfo> Write(const std::string& folder, const std::string& name,
                                             absl::Span<const absl::string_view> parts) override;

 private:
  SimDisk& disk_;
  const int host_;
  int64_t temporaries_ = 0;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_SIM_FILES_H_
