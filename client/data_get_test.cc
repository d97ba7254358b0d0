// `data get` of an archive, from a server in this process.
#include "client/data_get.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/tar_test_files.h"
#include "training/codec/sha256.h"

namespace capstan::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr data::CatalogMember kMembers[] = {{"a.bin", 3}, {"b.bin", 4}};

class DataGetTest : public ::testing::Test {
 protected:
  DataGetTest() {
    SetArchive(data::TarMember("set/a.bin", "abc") + data::TarMember("../x", "evil") +
               data::TarMember("set/b.bin", "defg"));
    server_.Get("/files/set.tar.gz", [this](const httplib::Request&, httplib::Response& answer) {
      ++asked_;
      answer.set_content(served_, "application/x-gzip");
      answer.set_header("Content-Encoding", "gzip");  // as some servers call it
    });
    server_.set_read_timeout(0, 200000);  // for connections that speak no HTTP
    const int port = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    source_.base_url = absl::StrCat("http://127.0.0.1:", port, "/files");
    source_.timeout_seconds = 30;
  }
  ~DataGetTest() override {
    server_.stop();
    thread_.join();
  }

  // Sets what the server serves and what the catalog expects.
  void SetArchive(const std::string& tar) {
    archive_ = data::Gzip(tar + data::TarEnd());
    sha256_ = training::Sha256Hex(archive_);
    served_ = archive_;
  }
  absl::Status Get() {
    const data::CatalogFile files[] = {
        {"set.tar.gz", static_cast<int64_t>(archive_.size()), "", sha256_}};
    data::CatalogEntry entry;
    entry.files = files;
    entry.archive_folder = "set";
    entry.members = kMembers;
    notes_.clear();
    return GetData(entry, source_, folder_.path() + "/out",
                   [this](absl::string_view line) { absl::StrAppend(&notes_, line); });
  }
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      names.insert(entry.path().lexically_relative(folder_.path()));
    }
    return names;
  }

  const data::TempFolder folder_;
  httplib::Server server_;
  std::thread thread_;
  std::string archive_, sha256_, served_, notes_;
  DataSource source_;
  std::atomic<int> asked_{0};
};

TEST_F(DataGetTest, MembersOfAnArchiveArriveAndAreKept) {
  const absl::Status status = Get();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Files(), ElementsAre("out", "out/SHA256SUMS", "out/a.bin", "out/b.bin"));
  EXPECT_THAT(notes_, HasSubstr("/out/set.tar.gz: "));
  ASSERT_TRUE(Get().ok());
  EXPECT_THAT(notes_, HasSubstr("/out: exists already"));
  EXPECT_EQ(asked_, 1);
  // A changed file is downloaded again.
  std::filesystem::resize_file(folder_.path() + "/out/b.bin", 3);
  ASSERT_TRUE(Get().ok());
  EXPECT_EQ(asked_, 2);
  EXPECT_EQ(std::filesystem::file_size(folder_.path() + "/out/b.bin"), 4u);
}

TEST_F(DataGetTest, AnArchiveThatIsNotTheCatalogsIsNeverUnpacked) {
  served_[served_.size() / 2] ^= 1;
  absl::Status status = Get();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("set.tar.gz.part: sha256 "));
  EXPECT_THAT(Files(), ElementsAre("out"));
  served_ = archive_.substr(0, archive_.size() - 1);
  status = Get();
  EXPECT_THAT(std::string(status.message()), HasSubstr(" bytes, want "));
  served_ = archive_ + "x";
  status = Get();
  EXPECT_THAT(std::string(status.message()), HasSubstr("set.tar.gz: more than the "));
  EXPECT_THAT(Files(), ElementsAre("out"));
}

TEST_F(DataGetTest, AnArchiveWithoutAMemberLeavesNoSums) {
  SetArchive(data::TarMember("set/a.bin", "abc"));
  const absl::Status status = Get();
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no b.bin"));
  EXPECT_THAT(Files(), ElementsAre("out", "out/a.bin"));  // no archive either
}

TEST_F(DataGetTest, AHostThatDoesNotAnswerIsNamedWithWhatToDo) {
  const std::string served = source_.base_url;
  source_.base_url = "http://127.0.0.1:1/files";  // nothing listens there
  EXPECT_EQ(Get(), absl::UnavailableError(
                       absl::StrCat("cannot connect to 127.0.0.1:1; try --url, or copy the two "
                                    "files to ",
                                    folder_.path(), "/out")));
  source_.base_url = served + "/elsewhere";  // a server that answers, with an error
  EXPECT_EQ(Get(),
            absl::UnavailableError(absl::StrCat(served, "/elsewhere/set.tar.gz: HTTP status 404")));
}

TEST_F(DataGetTest, UrlsAreHttpOrHttps) {
  EXPECT_TRUE(CheckDataSource({"https://host:1/path"}).ok());
  EXPECT_TRUE(CheckDataSource({"http://host"}).ok());
  for (const char* bad : {"ftp://host/", "host", "", "httpx://host/"}) {
    EXPECT_EQ(CheckDataSource({bad}).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  // Without a valid certificate nothing is downloaded.
  source_.base_url.replace(0, 4, "https");
  EXPECT_EQ(Get().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(asked_, 0);
  EXPECT_THAT(Files(), ElementsAre("out"));
}

}  // namespace
}  // namespace capstan::client
