#include "services/files/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::services {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() : folder_(*MakePrivateDir("capstan-files")) {}
  ~FilesTest() override {
    EXPECT_TRUE(RemoveTree("/tmp", folder_).ok());
    EXPECT_NE(access(folder_.c_str(), F_OK), 0);
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    DIR* dir = opendir(folder_.c_str());
    while (const dirent* entry = readdir(dir)) {
      if (entry->d_name[0] != '.') names.push_back(entry->d_name);
    }
    closedir(dir);
    return names;
  }
  std::string Read(const std::string& name) const { return *ReadWholeFile(Path(name), 1 << 20); }

  const std::string folder_;
};

TEST_F(FilesTest, AtomicWriteReplacesAndLeavesNothingElse) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "one").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "two", {.mode = 0600}).ok());
  EXPECT_EQ(Read("a"), "two");
  EXPECT_THAT(Names(), ElementsAre("a"));
  struct stat info;
  ASSERT_EQ(stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(FilesTest, LinkingKeepsTheFirstFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("m"), "one", {.replace = false}).ok());
  const absl::Status second = WriteFileAtomically(Path("m"), "two", {.replace = false});
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(second.message(), absl::StrCat("link to ", Path("m"), ": File exists"));
  EXPECT_EQ(Read("m"), "one");
  EXPECT_THAT(Names(), ElementsAre("m"));
}

TEST_F(FilesTest, UncommittedFileIsNeverSeen) {
  {
    auto file = AtomicFile::Create(Path("a"));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("half").ok());
    EXPECT_EQ((*file)->size_bytes(), 4);
    EXPECT_NE(access(Path("a").c_str(), F_OK), 0);
  }
  EXPECT_THAT(Names(), ElementsAre());
  auto file = AtomicFile::Create(Path("b"));
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ((*file)->Commit().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*file)->Append("x").code(), absl::StatusCode::kFailedPrecondition);
}

// A file size limit stands in for the full disk. Both make the write fail half-way.
TEST_F(FilesTest, FullDiskIsResourceExhaustedAndLeavesTheOldFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "old").ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteFileAtomically(Path("a"), std::string(5000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Read("a"), "old");
  EXPECT_THAT(Names(), ElementsAre("a"));
  // The real one, if the kernel has it.
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  EXPECT_LT(write(full, "x", 1), 0);
  EXPECT_EQ(ErrnoStatus(errno, "write", "/a").ToString(),
            "RESOURCE_EXHAUSTED: write /a: No space left on device");
  close(full);
}

TEST_F(FilesTest, ReadHasALimit) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "12345").ok());
  EXPECT_EQ(*ReadWholeFile(Path("a"), 5), "12345");
  EXPECT_EQ(ReadWholeFile(Path("a"), 4).status().message(),
            absl::StrCat("read ", Path("a"), ": 5 bytes, at most 4 are allowed"));
  EXPECT_EQ(ReadWholeFile(Path("no"), 4).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadWholeFile(folder_, 4).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(ReadWholeFile(Path("fifo"), 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(*ReadWholeFile("/proc/self/stat", 1 << 20), HasSubstr("("));  // it claims a size of 0
  EXPECT_FALSE(ReadWholeFile("/proc/self/stat", 3).ok());
}

TEST_F(FilesTest, LineFileCutsATornLineAndGoesOn) {
  {
    auto file = *LineFile::Open(Path("m.jsonl"));
    ASSERT_TRUE(file->Append("{\"step\":1}").ok());
    EXPECT_EQ(Read("m.jsonl"), "");
    ASSERT_TRUE(file->Flush().ok());
    EXPECT_EQ(Read("m.jsonl"), "{\"step\":1}\n");
    EXPECT_EQ(file->Append("a\nb").code(), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(file->Append(std::string(5000, 'y')).ok());
    ASSERT_TRUE(file->Sync().ok());
  }
  // A crash in the middle of a line, longer than one block of the search.
  ASSERT_TRUE(WriteFileAtomically(Path("m.jsonl"), "one\ntwo\n" + std::string(9000, 'z')).ok());
  {
    auto file = *LineFile::Open(Path("m.jsonl"));
    ASSERT_TRUE(file->Append("three").ok());
  }
  EXPECT_EQ(Read("m.jsonl"), "one\ntwo\nthree\n");
  ASSERT_TRUE(WriteFileAtomically(Path("torn"), "no line at all").ok());
  ASSERT_TRUE(LineFile::Open(Path("torn")).ok());
  EXPECT_EQ(Read("torn"), "");
}

TEST_F(FilesTest, LineFileGoesOnWhereAFullDiskStoppedIt) {
  auto file = *LineFile::Open(Path("m.jsonl"));
  ASSERT_TRUE(file->Append("12345").ok());
  ASSERT_TRUE(file->Flush().ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::vector<absl::Status> failed;
  ASSERT_TRUE(file->Append("abcdefgh").ok());
  failed.push_back(file->Flush());
  ASSERT_TRUE(file->Append("next").ok());
  failed.push_back(file->Sync());
  const absl::Status dropped = file->Append(std::string(LineFile::kMaxKeptBytes, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  for (const absl::Status& status : failed) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
  EXPECT_EQ(dropped.code(), absl::StatusCode::kResourceExhausted) << dropped;
  EXPECT_EQ(Read("m.jsonl"), "12345\nabcd");
  ASSERT_TRUE(file->Append("freed").ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(Read("m.jsonl"), "12345\nabcdefgh\nnext\nfreed\n");
}

TEST_F(FilesTest, LineFileGoesOnOnceThereIsSpaceForAllThatItKept) {
  auto file = *LineFile::Open(Path("m.jsonl"));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 10 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string line(1023, 'x');
  int taken = 0;
  while (!absl::StrContains(file->Append(line).message(), "the line is dropped")) ++taken;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(taken, 10 + 8192);  // written or kept
  EXPECT_EQ(file->Append(line), absl::OkStatus());
  EXPECT_EQ(file->Flush(), absl::OkStatus());
  struct stat info;
  ASSERT_EQ(stat(Path("m.jsonl").c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 1024 * (taken + 1));
}

TEST_F(FilesTest, EnsureDirMakesAllOfIt) {
  EXPECT_TRUE(EnsureDir(Path("a/b//c/")).ok());
  EXPECT_TRUE(EnsureDir(Path("a/b/c")).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "").ok());
  EXPECT_EQ(EnsureDir(Path("file")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(EnsureDir(Path("file/x")).code(), absl::StatusCode::kFailedPrecondition);
  struct stat info;
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);  // made by MakePrivateDir
  EXPECT_LT(folder_.size(), 40u);
}

TEST_F(FilesTest, RemoveTreeStaysInsideItsRoot) {
  ASSERT_TRUE(EnsureDir(Path("root/run/sub")).ok());
  ASSERT_TRUE(EnsureDir(Path("outside")).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("outside/keep"), "k").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("root/run/sub/f"), "k").ok());
  ASSERT_EQ(symlink(Path("outside").c_str(), Path("root/run/link").c_str()), 0);
  ASSERT_EQ(symlink(Path("outside").c_str(), Path("root/door").c_str()), 0);
  const std::string root = Path("root");
  for (const std::string& bad :
       {root, root + "/", root + "/..", root + "/../outside", root + "/run/../../outside",
        Path("outside"), root + "x", std::string("run"), std::string("")}) {
    EXPECT_EQ(RemoveTree(root, bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  // A path through a link below the root is refused, not followed.
  EXPECT_FALSE(RemoveTree(root, root + "/door/keep").ok());
  EXPECT_TRUE(RemoveTree(root + "/", root + "/run").ok());
  EXPECT_TRUE(RemoveTree(root, root + "/run").ok());   // it is gone already
  EXPECT_TRUE(RemoveTree(root, root + "/door").ok());  // the link itself
  EXPECT_EQ(Read("outside/keep"), "k");
  EXPECT_THAT(Names(), UnorderedElementsAre("root", "outside"));
}

TEST(LeaveFreeTest, LargeFilesLeaveATwentiethOfADiskFree) {
  const std::string folder = *MakePrivateDir("capstan-floor");
  if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=10m") != 0) {
    (void)RemoveTree("/tmp", folder);
    std::fprintf(stderr, "SKIPPED: no right to mount a tmpfs here\n");
    GTEST_SKIP() << "no right to mount a tmpfs here";
  }
  const int64_t mib = 1 << 20;
  EXPECT_TRUE(LeaveFree(folder, 9 * mib).ok());
  const absl::Status refused = LeaveFree(folder, 9 * mib + mib / 2 + 4096);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(refused.message(), absl::StrCat("write ", folder,
                                            ": 9965568 bytes, but 10485760 are free, and 524288 "
                                            "are reserved: No space left on device"));
  const absl::StatusOr<DiskRoom> room = RoomOf(folder);
  ASSERT_TRUE(room.ok()) << room.status();
  EXPECT_EQ(room->free_bytes, 10 * mib);
  EXPECT_EQ(room->kept_bytes, mib / 2);
  EXPECT_EQ(room->usable_bytes(), 10 * mib - mib / 2);
  EXPECT_EQ((DiskRoom{1, 2}).usable_bytes(), 0);
  EXPECT_TRUE(absl::IsNotFound(RoomOf(folder + "/absent").status()));
  EXPECT_EQ(::umount(folder.c_str()), 0);
  (void)RemoveTree("/tmp", folder);
}

}  // namespace
}  // namespace capstan::services
