#include "services/security/tokens.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "services/logging/log.h"
#include "services/security/secret_file.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

constexpr char kTimeFormat[] = "%Y-%m-%dT%H:%M:%SZ";

bool IsHash(absl::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// object[key], which must be a string.
absl::StatusOr<std::string> Text(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("'", key, "': want a string"));
  }
  return it->get<std::string>();
}

absl::StatusOr<TokenEntry> ParseEntry(const nlohmann::json& object) {
  if (!object.is_object() || object.size() != 4) {
    return absl::InvalidArgumentError("want {sha256, role, name, expires}");
  }
  TokenEntry entry;
  std::string texts[4];
  const char* const keys[] = {"sha256", "role", "name", "expires"};
  for (size_t i = 0; i < 4; ++i) {
    absl::StatusOr<std::string> text = Text(object, keys[i]);
    if (!text.ok()) return text.status();
    texts[i] = *std::move(text);
  }
  if (!IsHash(texts[0])) {
    return absl::InvalidArgumentError("'sha256': want 64 lower-case hexadecimal digits");
  }
  entry.sha256 = texts[0];
  const absl::StatusOr<Role> role = ParseRole(texts[1]);
  if (!role.ok()) return role.status();
  if (absl::Status status = CheckIdentityName(texts[2]); !status.ok()) return status;
  entry.identity = {*role, texts[2]};
  std::string error;
  if (!absl::ParseTime(kTimeFormat, texts[3], &entry.expires, &error)) {
    return absl::InvalidArgumentError(absl::StrCat("'expires': ", error));
  }
  return entry;
}

}  // namespace

std::string MakeToken() {
  unsigned char random[32];
  CAPSTAN_CHECK(RAND_bytes(random, sizeof(random)) == 1);
  const absl::string_view bytes(reinterpret_cast<const char*>(random), sizeof(random));
  return absl::StrCat(kTokenPrefix, absl::WebSafeBase64Escape(bytes));
}

std::string MakeResumeKey() {
  std::string key(kResumeKeyBytes, 0);
  CAPSTAN_CHECK(
      RAND_bytes(reinterpret_cast<unsigned char*>(key.data()), static_cast<int>(key.size())) == 1);
  return key;
}

std::string HashToken(absl::string_view token) {
  unsigned char digest[32];
  unsigned int size = 0;
  CAPSTAN_CHECK(EVP_Digest(token.data(), token.size(), digest, &size, EVP_sha256(), nullptr) == 1 &&
                size == sizeof(digest));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

absl::StatusOr<std::vector<TokenEntry>> ParseTokens(absl::string_view file,
                                                    absl::string_view text) {
  const nlohmann::json root = nlohmann::json::parse(text.begin(), text.end(), nullptr,
                                                    /*allow_exceptions=*/false);
  if (!root.is_object() || root.size() != 2 || !root.contains("version") || root["version"] != 1 ||
      !root.contains("tokens") || !root["tokens"].is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, R"(: want {"version": 1, "tokens": [...]})"));
  }
  std::vector<TokenEntry> entries;
  absl::flat_hash_map<std::string, size_t> seen;
  for (const nlohmann::json& object : root["tokens"]) {
    const std::string place = absl::StrCat(file, ": tokens[", entries.size(), "]: ");
    absl::StatusOr<TokenEntry> entry = ParseEntry(object);
    if (!entry.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(place, entry.status().message()));
    }
    if (!seen.emplace(entry->sha256, entries.size()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, "the same token as tokens[", seen[entry->sha256], "]"));
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

std::string FormatTokens(const std::vector<TokenEntry>& entries) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TokenEntry& entry : entries) {
    list.push_back(
        {{"sha256", entry.sha256},
         {"role", std::string(RoleName(entry.identity.role))},
         {"name", entry.identity.name},
         {"expires", absl::FormatTime(kTimeFormat, entry.expires, absl::UTCTimeZone())}});
  }
  const nlohmann::ordered_json root = {{"version", 1}, {"tokens", std::move(list)}};
  return root.dump(2) + "\n";
}

struct TokenTable::State {
  using Entries = absl::flat_hash_map<std::string, TokenEntry>;

  explicit State(std::string file) : path(std::move(file)) {}
  // Waits for the disk without holding a lock.
  absl::Status Read();
  void ReadIfChanged();

  const std::string path;
  Mutex mu;
  FileStamp stamp ABSL_GUARDED_BY(mu);
  Entries by_hash ABSL_GUARDED_BY(mu);
};

absl::Status TokenTable::State::Read() {
  const FileStamp now = FileStamp::Of(path);  // a later change is seen the next time
  {
    MutexLock lock(mu);
    stamp = now;
  }
  const absl::StatusOr<std::string> text = ReadSecretFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<TokenEntry>> entries = ParseTokens(path, *text);
  if (!entries.ok()) return entries.status();
  Entries fresh;
  for (TokenEntry& entry : *entries) {
    const std::string hash = entry.sha256;
    fresh.emplace(hash, std::move(entry));
  }
  MutexLock lock(mu);
  by_hash.swap(fresh);
  return absl::OkStatus();
}

void TokenTable::State::ReadIfChanged() {
  const FileStamp now = FileStamp::Of(path);
  {
    MutexLock lock(mu);
    if (now == stamp) return;
  }
  if (absl::Status status = Read(); !status.ok()) {
    Log(kError, "tokens_not_read").Kv("status", status);
    return;
  }
  Log(kInfo, "tokens_read").Kv("file", path);
}

TokenTable::TokenTable(std::shared_ptr<State> state)
    : state_(std::move(state)), look_([kept = state_] { kept->ReadIfChanged(); }, kTokensFresh) {}

absl::StatusOr<std::unique_ptr<TokenTable>> TokenTable::Open(const std::string& path) {
  auto state = std::make_shared<State>(path);
  if (absl::Status status = state->Read(); !status.ok()) return status;
  return std::unique_ptr<TokenTable>(new TokenTable(std::move(state)));
}

std::optional<Identity> TokenTable::Find(absl::string_view token, absl::Time now) {
  const std::string hash = HashToken(token);
  if (!look_.Refresh()) {
    Log(kWarning, "tokens_do_not_answer").Limit("all", absl::Minutes(1)).Kv("file", state_->path);
  }
  MutexLock lock(state_->mu);
  const auto it = state_->by_hash.find(hash);
  if (it == state_->by_hash.end() || it->second.expires <= now) return std::nullopt;
  return it->second.identity;
}

absl::StatusOr<std::string> ParseToken(absl::string_view file, absl::string_view text) {
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  bool good = token.size() >= 16 && token.size() <= 256;
  for (const char c : token) {
    good = good && (absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.');
  }
  if (good) return std::string(token);
  return absl::InvalidArgumentError(absl::StrCat(
      file, ": holds no token (16 to 256 of A-Z, a-z, 0-9, '_', '-' and '.', one line)"));
}

struct TokenFile::State {
  explicit State(std::string file) : path(std::move(file)) {}
  absl::Status Read();

  const std::string path;
  Mutex mu;
  FileStamp stamp ABSL_GUARDED_BY(mu);
  std::string token ABSL_GUARDED_BY(mu);
};

absl::Status TokenFile::State::Read() {
  const FileStamp now = FileStamp::Of(path);
  {
    MutexLock lock(mu);
    stamp = now;
  }
  const absl::StatusOr<std::string> text = ReadSecretFile(path, 4096);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::string> fresh = ParseToken(path, *text);
  if (!fresh.ok()) return fresh.status();
  MutexLock lock(mu);
  token = *std::move(fresh);
  return absl::OkStatus();
}

TokenFile::TokenFile(std::shared_ptr<State> state)
    : state_(std::move(state)),
      look_(
          [kept = state_] {
            const FileStamp now = FileStamp::Of(kept->path);
            {
              MutexLock lock(kept->mu);
              if (now == kept->stamp) return;
            }
            if (absl::Status status = kept->Read(); !status.ok()) {
              Log(kError, "token_not_read").Kv("status", status);
            }
          },
          kTokensFresh) {}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  KeepMemoryPrivate();
  auto state = std::make_shared<State>(path);
  if (absl::Status status = state->Read(); !status.ok()) return status;
  return std::unique_ptr<TokenFile>(new TokenFile(std::move(state)));
}

std::string TokenFile::Get() {
  (void)look_.Refresh();
  MutexLock lock(state_->mu);
  return state_->token;
}

}  // namespace capstan::services
