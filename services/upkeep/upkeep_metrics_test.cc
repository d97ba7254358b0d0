#include "services/upkeep/upkeep_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/tokens.h"

namespace capstan::services {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class UpkeepMetricsTest : public ::testing::Test {
 protected:
  std::string Path(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }
  void Write(absl::string_view name, const std::string& bytes) const {
    ASSERT_TRUE(WriteFileAtomically(Path(name), bytes, {.replace = true, .mode = 0600}).ok());
  }
  static KeyPair Authority(absl::Duration lifetime) {
    return *MakeAuthority("test", kNow, lifetime);
  }
  static std::string Leaf(const KeyPair& authority, absl::Duration lifetime) {
    return IssueCertificate(authority, {.identity = {Role::kWorker, "a"},
                                        .hosts = {"a"},
                                        .now = kNow,
                                        .lifetime = lifetime})
        ->certificate;
  }

  const std::string folder_ = *MakePrivateDir("upkeep");
  MetricsRegistry registry_{"param_store"};
};

TEST_F(UpkeepMetricsTest, FoldersHaveRoomAndThoseThatAreNotThereNoSeries) {
  UpkeepMetrics upkeep(registry_,
                       {FolderFor(folder_, job::v1::FOLDER_USE_STATE),
                        FolderFor(Path("late"), job::v1::FOLDER_USE_CHECKPOINTS),
                        FolderFor(Path("gone"), job::v1::FOLDER_USE_DATA)},
                       Security());
  const auto scrape = upkeep.Scraper();
  std::string text = scrape();
  EXPECT_THAT(text, AllOf(HasSubstr(absl::StrCat("capstan_folder_free_bytes{folder=\"", folder_,
                                                 "\",use=\"state\"} ")),
                          HasSubstr(absl::StrCat("capstan_folder_size_bytes{folder=\"", folder_,
                                                 "\",use=\"state\"} ")),
                          Not(HasSubstr("use=\"checkpoints\"")), Not(HasSubstr("use=\"data\"")),
                          Not(HasSubstr("expiry"))));
  // A folder that appears has a series from then on; one that disappears has none.
  ASSERT_TRUE(EnsureDir(Path("late"), 0700).ok());
  EXPECT_THAT(scrape(), HasSubstr("use=\"checkpoints\""));
  ASSERT_EQ(rmdir(Path("late").c_str()), 0);
  EXPECT_THAT(scrape(), Not(HasSubstr("use=\"checkpoints\"")));
}

TEST_F(UpkeepMetricsTest, CertificatesTellTheirEndAndARotationIsSeen) {
  const KeyPair old = Authority(absl::Hours(10));
  Write("tls.crt", Leaf(old, absl::Hours(1)));
  Write("ca.crt", old.certificate);
  Security security;
  security.tls_cert = Path("tls.crt");
  security.tls_ca = Path("ca.crt");
  UpkeepMetrics upkeep(registry_, {}, security);
  const auto scrape = upkeep.Scraper();
  EXPECT_THAT(
      scrape(),
      AllOf(HasSubstr("_expiry_timestamp_seconds{certificate=\"own\"} 1800003600\n"),
            HasSubstr("_expiry_timestamp_seconds{certificate=\"authority\"} 1800036000\n")));
  // The old authority stays beside the new one for a while.
  const KeyPair fresh = Authority(absl::Hours(100));
  Write("ca.crt", absl::StrCat(fresh.certificate, old.certificate));
  Write("tls.crt", Leaf(fresh, absl::Hours(2)));
  EXPECT_THAT(
      scrape(),
      AllOf(HasSubstr("_expiry_timestamp_seconds{certificate=\"own\"} 1800007200\n"),
            HasSubstr("_expiry_timestamp_seconds{certificate=\"authority\"} 1800360000\n")));
  Write("tls.crt", "half a file");
  EXPECT_THAT(scrape(),
              AllOf(Not(HasSubstr("certificate=\"own\"")), HasSubstr("certificate=\"authority\"")));
}

TEST_F(UpkeepMetricsTest, TokensOfNodesTellTheEndOfTheNewest) {
  const auto entry = [](Role role, const std::string& name, absl::Duration left) {
    return TokenEntry{HashToken(MakeToken()), {role, name}, kNow + left};
  };
  const TokenEntry shard = entry(Role::kParamStore, "node-b", absl::Hours(3));
  Write("tokens.json",
        FormatTokens({entry(Role::kWorker, "node-a", absl::Hours(2)),
                      entry(Role::kWorker, "node-a", absl::Hours(1)),  // from before its rotation
                      shard, entry(Role::kClient, "ann", absl::Hours(1))}));
  Security security;
  security.tokens = Path("tokens.json");
  UpkeepMetrics upkeep(registry_, {}, security);
  const auto scrape = upkeep.Scraper();
  EXPECT_THAT(scrape(), AllOf(HasSubstr("{name=\"node-a\",role=\"worker\"} 1800007200\n"),
                              HasSubstr("{name=\"node-b\",role=\"param_store\"} 1800010800\n"),
                              Not(HasSubstr("ann"))));
  Write("tokens.json", FormatTokens({shard}));
  EXPECT_THAT(scrape(), AllOf(Not(HasSubstr("node-a")), HasSubstr("node-b")));
}

}  // namespace
}  // namespace capstan::services
