#include "coordinator/stored_file.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/file_keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/files/files.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StoredFileTest : public ::testing::Test {
 protected:
  ~StoredFileTest() override { (void)services::RemoveTree("/tmp", root_); }

  IncomingFile::Announced Announce(const std::string& content) const {
    return {absl::StrCat(root_, "/1-4"),
            {root_},
            "shard-0.safetensors",
            static_cast<int64_t>(content.size()),
            absl::HexStringToBytes(training::Sha256Hex(content))};
  }
  std::string Read(const std::string& name) const {
    return services::ReadWholeFile(absl::StrCat(root_, "/", name), 1 << 20).value_or("(none)");
  }

  const std::string root_ = *services::MakePrivateDir("stored-file-test");
};

TEST_F(StoredFileTest, AFileGoesOnAfterEveryCut) {
  const std::string content =
      "the bytes of a shard, of which every one may be the last before a cut";
  size_t sent = 0;
  while (true) {
    const auto file = IncomingFile::Open(Announce(content));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->offset(), static_cast<int64_t>(sent));
    if ((*file)->done()) break;
    EXPECT_EQ(Read("1-4/shard-0.safetensors"), "(none)");
    ASSERT_EQ((*file)->Append(content.substr(sent, 1)), absl::OkStatus());
    ++sent;
  }
  EXPECT_EQ(sent, content.size());
  EXPECT_EQ(Read("1-4/shard-0.safetensors"), content);
  EXPECT_EQ(access(absl::StrCat(root_, "/1-4/.shard-0.safetensors.part").c_str(), F_OK), -1);
}

TEST_F(StoredFileTest, WhatHasAnotherHashIsThrownAwayAndMayBeSentAgain) {
  const std::string content = "0123456789";
  auto file = IncomingFile::Open(Announce(content));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Append("01234x6789").code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE((*file)->done());
  EXPECT_EQ(Read("1-4/shard-0.safetensors"), "(none)");
  file = IncomingFile::Open(Announce(content));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->offset(), 0);
  EXPECT_EQ((*file)->Append(content), absl::OkStatus());
  EXPECT_TRUE((*file)->done());
}

TEST_F(StoredFileTest, MoreThanWasAnnouncedIsRefused) {
  const auto file = IncomingFile::Open(Announce("0123"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Append("01234").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*file)->offset(), 0);
}

// Somebody with access has put a link there. What it points to must not be written.
TEST_F(StoredFileTest, ALinkIsNotFollowed) {
  ASSERT_EQ(services::EnsureDir(absl::StrCat(root_, "/1-4")), absl::OkStatus());
  const std::string victim = absl::StrCat(root_, "/victim");
  ASSERT_EQ(services::WriteFileAtomically(victim, "precious"), absl::OkStatus());
  ASSERT_EQ(symlink(victim.c_str(), absl::StrCat(root_, "/1-4/.shard-0.safetensors.part").c_str()),
            0);
  EXPECT_EQ(IncomingFile::Open(Announce("0123")).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Read("victim"), "precious");
}

// The coordinator's state may be on the same disk and needs room. A file that is already there from
// an earlier try needs none.
TEST_F(StoredFileTest, AFileThatIsSentLeavesATwentiethOfTheDiskFree) {
  const std::string disk = root_ + "/disk";
  ASSERT_EQ(services::EnsureDir(disk), absl::OkStatus());
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=10m") != 0) {
    GTEST_SKIP() << "NOT TESTED: the floor of free space; mounting a tmpfs needs root";
  }
  const absl::Cleanup unmount = [&disk] { EXPECT_EQ(umount(disk.c_str()), 0); };
  constexpr int64_t kMib = 1 << 20;
  IncomingFile::Announced announced = {disk + "/1-4",
                                       {disk},
                                       "shard-0.safetensors",
                                       9 * kMib + kMib / 2 + 4096,
                                       std::string(32, 'h')};
  const absl::Status refused = IncomingFile::Open(announced).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(disk + "/1-4: 9965568 bytes, but "),
                    HasSubstr(" are free, and 524288 are reserved: No space left on device")));
  announced.size_bytes = 9 * kMib;
  {
    const auto file = IncomingFile::Open(announced);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->Append(std::string(5 * kMib, 'x')), absl::OkStatus());
  }
  const auto again = IncomingFile::Open(announced);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->offset(), 5 * kMib);
}

// Another name of the same disk does not help, and a root that the operator does not allow is
// refused.
TEST_F(StoredFileTest, AFileLiesUnderARootOrNowhere) {
  IncomingFile::Announced announced = Announce("0123");
  announced.roots = {"/nowhere", root_ + "/other"};
  const absl::Status status = IncomingFile::Open(announced).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(root_ + "/1-4: is not under any folder"));
  EXPECT_EQ(access(absl::StrCat(root_, "/1-4").c_str(), F_OK), -1);
  announced.roots.push_back(root_);
  EXPECT_EQ(IncomingFile::Open(announced).status(), absl::OkStatus());
  EXPECT_EQ(AppendToLog(root_ + "/j-1", {root_ + "/j-2"}, 0, "one\n").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(StoredFileTest, TheLogIsNoLinkAndNoPipe) {
  const std::string log = absl::StrCat(root_, "/metrics.jsonl");
  ASSERT_EQ(services::WriteFileAtomically(absl::StrCat(root_, "/victim"), "half a lin"),
            absl::OkStatus());
  ASSERT_EQ(symlink("victim", log.c_str()), 0);
  for (const int64_t offset : {-1, 0}) {
    EXPECT_EQ(AppendToLog(root_, {root_}, offset, "one\n").status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(Read("victim"), "half a lin");
  ASSERT_EQ(unlink(log.c_str()), 0);
  ASSERT_EQ(mkfifo(log.c_str(), 0600), 0);  // opening it would wait for a reader
  EXPECT_EQ(AppendToLog(root_, {root_}, 0, "one\n").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(StoredFileTest, AFileIsSentInBlocksFromWhereItIsWanted) {
  const std::string content = std::string(600'000, 'a') + "end";
  ASSERT_EQ(services::WriteFileAtomically(absl::StrCat(root_, "/f"), content), absl::OkStatus());
  const auto read = [&](int64_t offset, int64_t length) {
    auto file = OutgoingFile::Open({.path = absl::StrCat(root_, "/f"),
                                    .roots = {root_},
                                    .offset = offset,
                                    .length_bytes = length});
    EXPECT_TRUE(file.ok()) << file.status();
    std::string all, block;
    while (file.ok() && !(*file)->at_end()) {
      EXPECT_EQ((*file)->Next(block), absl::OkStatus());
      all += block;
    }
    return all;
  };
  EXPECT_TRUE(read(0, 0) == content);
  EXPECT_EQ(read(600'000, 0), "end");
  EXPECT_EQ(read(599'999, 2), "ae");
  EXPECT_EQ(read(600'003, 0), "");
  EXPECT_EQ(OutgoingFile::Open({.path = root_ + "/f", .roots = {root_}, .offset = 600'004})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OutgoingFile::Open({.path = root_ + "/none", .roots = {root_}}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(StoredFileTest, ALookLeavesNothingAndTakesAwayWhatAKilledCoordinatorLeft) {
  const std::string old = absl::StrCat(root_, "/.capstan-look-00ff-1");
  const std::string job = absl::StrCat(root_, "/.capstan-other");
  for (const std::string& path : {old, job}) {
    ASSERT_EQ(services::WriteFileAtomically(path, "x"), absl::OkStatus());
  }
  std::string path;
  {
    const auto look = LookFile::Make(root_, {root_});
    ASSERT_TRUE(look.ok()) << look.status();
    EXPECT_EQ(Read((*look)->name()), (*look)->nonce());
    path = absl::StrCat(root_, "/", (*look)->name());
    EXPECT_EQ(access(old.c_str(), F_OK), -1);
    EXPECT_TRUE(LookFile::Make(root_, {root_}).ok());
    EXPECT_EQ(RemoveOldLooks(root_), 0);
    EXPECT_EQ(access(path.c_str(), F_OK), 0);  // of another LookFile of this process
  }
  EXPECT_EQ(access(path.c_str(), F_OK), -1);
  EXPECT_EQ(access(job.c_str(), F_OK), 0);
}

TEST_F(StoredFileTest, NamesOfTensorFilesAreFew) {
  for (const char* name : {"weights.safetensors", "shard-0.safetensors", "shard-255.safetensors",
                           "residuals-0.safetensors", "residuals-31.safetensors"}) {
    EXPECT_TRUE(IsTensorFileName(name)) << name;
  }
  for (const char* name :
       {"", "manifest.json", "shard-.safetensors", "shard-00.safetensors", "shard--1.safetensors",
        "residuals-.safetensors", "residuals-shard-1.safetensors", "shard-residuals-1.safetensors",
        "shard-0.safetensors/..", "../shard-0.safetensors", "shard-0.safetensors.part",
        "/etc/passwd", "shard-+1.safetensors", "shard- 1.safetensors", "metrics.jsonl"}) {
    EXPECT_FALSE(IsTensorFileName(name)) << name;
  }
}

TEST_F(StoredFileTest, LinesOfALogAreThereOnce) {
  EXPECT_EQ(*AppendToLog(root_, {root_}, -1, ""), 0);
  EXPECT_EQ(*AppendToLog(root_, {root_}, 0, "one\n"), 4);
  EXPECT_EQ(*AppendToLog(root_, {root_}, 0, "one\n"), 4);       // the answer was lost
  EXPECT_EQ(*AppendToLog(root_, {root_}, 0, "one\ntwo\n"), 8);  // more lines came meanwhile
  EXPECT_EQ(*AppendToLog(root_, {root_}, 8, "three\n"), 14);
  EXPECT_EQ(Read("metrics.jsonl"), "one\ntwo\nthree\n");
  EXPECT_EQ(AppendToLog(root_, {root_}, 15, "four\n").status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(AppendToLog(root_, {root_}, 0, "one\n").status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(AppendToLog(root_, {root_}, INT64_MAX, "one\n").status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Read("metrics.jsonl"), "one\ntwo\nthree\n");
}

TEST_F(StoredFileTest, HalfALineOfALogIsCutOffBeforeMoreComes) {
  ASSERT_EQ(services::WriteFileAtomically(absl::StrCat(root_, "/metrics.jsonl"), "one\ntw"),
            absl::OkStatus());
  EXPECT_EQ(*AppendToLog(root_, {root_}, -1, ""), 4);
  EXPECT_EQ(*AppendToLog(root_, {root_}, 4, "two\n"), 8);
  EXPECT_EQ(Read("metrics.jsonl"), "one\ntwo\n");
}

TEST_F(StoredFileTest, AKeyIsOfOneJobAndOneProcess) {
  const FileKeys keys = *FileKeys::Open(root_);
  const std::string key = keys.Make("j-1", {.shard = true, .index = 3, .incarnation = 17});
  const auto holder = keys.Check("j-1", key);
  ASSERT_TRUE(holder.ok()) << holder.status();
  EXPECT_TRUE(holder->shard);
  EXPECT_EQ(holder->index, 3);
  EXPECT_EQ(holder->incarnation, 17);
  EXPECT_EQ(keys.Check("j-2", key).status().code(), absl::StatusCode::kUnauthenticated);
  for (size_t i = 0; i < key.size(); ++i) {
    std::string other = key;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(keys.Check("j-1", other).ok()) << i;
    EXPECT_FALSE(keys.Check("j-1", key.substr(0, i)).ok()) << i;
  }
}

TEST_F(StoredFileTest, KeysOutliveTheCoordinatorAndTheirSecretIsItsOwn) {
  const core::FileHolder task = {.shard = false, .index = 0, .incarnation = 2};
  const std::string key = FileKeys::Open(root_)->Make("j-1", task);
  EXPECT_TRUE(FileKeys::Open(root_)->Check("j-1", key).ok());
  const std::string path = absl::StrCat(root_, "/files.key");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  // Half a file is no secret. Another one is made, and the old keys are void.
  ASSERT_EQ(truncate(path.c_str(), 5), 0);
  EXPECT_FALSE(FileKeys::Open(root_)->Check("j-1", key).ok());
}

// A limit on the size of files gives the same error as a full disk.
TEST_F(StoredFileTest, ASecretThatAFullDiskDoesNotTakeIsUsedAndSavedLater) {
  const core::FileHolder task = {.shard = false, .index = 0, .incarnation = 2};
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto keys = FileKeys::Open(root_);
  const absl::Status full = keys.ok() ? keys->Save() : absl::OkStatus();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_FALSE(keys->durable());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  const std::string key = keys->Make("j-1", task);
  EXPECT_TRUE(keys->Check("j-1", key).ok());
  ASSERT_EQ(keys->Save(), absl::OkStatus());
  const auto later = FileKeys::Open(root_);
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_TRUE(later->durable());
  EXPECT_TRUE(later->Check("j-1", key).ok());
}

// After a start, keys of another secret are void, and all processes get new ones. A coordinator
// must never accept keys that it did not make, nor make another secret at each start.
TEST_F(StoredFileTest, WhateverTheSecretIsReadAsKeysAreOfOneSecret) {
  const core::FileHolder task = {.shard = false, .index = 0, .incarnation = 2};
  const std::string path = absl::StrCat(root_, "/files.key");
  const std::string key = FileKeys::Open(root_)->Make("j-1", task);
  const std::string whole = Read("files.key");
  ASSERT_EQ(whole.size(), 32u);
  const auto damage = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  const auto check = [&](const std::string& what) {
    const auto keys = FileKeys::Open(root_);
    ASSERT_TRUE(keys.ok()) << what << ": " << keys.status();
    EXPECT_TRUE(keys->durable()) << what;
    EXPECT_EQ(Read("files.key").size(), 32u) << what;  // a shorter secret is never used
    EXPECT_EQ(keys->Check("j-1", key).status().code(), absl::StatusCode::kUnauthenticated) << what;
    const std::string fresh = keys->Make("j-1", task);
    EXPECT_TRUE(keys->Check("j-1", fresh).ok()) << what;
    EXPECT_TRUE(FileKeys::Open(root_)->Check("j-1", fresh).ok()) << what;
  };
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    damage(bytes);
    check(absl::StrCat("bit ", bit));
    EXPECT_EQ(Read("files.key"), bytes);
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    damage(whole.substr(0, length));
    check(absl::StrCat(length, " bytes"));
  }
  damage(whole + "x");
  check("a byte too many");
  ASSERT_EQ(unlink(path.c_str()), 0);
  check("no file");
  damage(std::string(5000, 'x'));  // no valid secret either, and it is not read to its end
  const absl::Status large = FileKeys::Open(root_).status();
  EXPECT_THAT(
      std::string(large.message()),
      AllOf(HasSubstr("the secret for the files of jobs, in --state-dir"), HasSubstr(path)));
  damage(whole);
  EXPECT_TRUE(FileKeys::Open(root_)->Check("j-1", key).ok());
}

TEST_F(StoredFileTest, ASecretThatCannotBeReadIsNamed) {
  ASSERT_EQ(services::EnsureDir(root_ + "/files.key"), absl::OkStatus());
  const absl::Status status = FileKeys::Open(root_).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the secret for the files of jobs, in --state-dir"),
                    HasSubstr(root_ + "/files.key")));
}

// RFC 4231, section 4.3, has a test vector for another message. So the signature is compared with
// the result of Python's hmac for this message.
TEST_F(StoredFileTest, ASignatureIsAnHmac) {
  const FileKeys keys(std::string(32, 'k'));
  const std::string key = keys.Make("j-1", {.shard = true, .index = 0, .incarnation = 1});
  EXPECT_EQ(absl::BytesToHexString(key.substr(0, 32)),
            "e9629a507efd79fd27db6920dc8087f263601238a35c0683f7b88faeb1430d65");
  EXPECT_THAT(key, HasSubstr("shard/0/1"));
}

}  // namespace
}  // namespace capstan::coordinator
