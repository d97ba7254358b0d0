// What a node of `capstan launch` is told before it starts its service, and the lines that it says.
//
// A bundle holds a private key and a token. It goes through the node's standard input, an
// environment variable or a file of mode 0600, never through an argument list.
//
// Thread-safe: values and pure functions.
#ifndef CAPSTAN_CLIENT_LAUNCH_BUNDLE_H_
#define CAPSTAN_CLIENT_LAUNCH_BUNDLE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/security/role.h"

namespace capstan::client {

struct NodeBundle {
  services::Role role = services::Role::kWorker;
  std::string name;              // of the node: c, s0, w0
  std::string address;           // the host that others reach it by; it listens there
  std::string coordinator;       // HOST:PORT; empty for the coordinator itself
  std::string folder;            // private, the node removes it; empty: the node makes its own
  std::string authority;         // PEM
  std::string certificate;       // PEM
  std::string key;               // PEM
  std::string token;             // that it calls others with; empty for the coordinator
  std::string tokens;            // tokens.json of those who may call it
  int workers_of_host = 1;       // who share the host's cores
  int nodes = 1;                 // shards and workers of the launch: no other ones will come
  std::string job_id;            // of the coordinator: the one job of the launch
  std::string state_dir;         // of the coordinator; empty: in `folder`
  std::vector<std::string> env;  // NAME=VALUE for the service
};

// JSON on one line, without a line end. ParseBundle: InvalidArgument, with the key and never with a
// value.
std::string BundleText(const NodeBundle& bundle);
absl::StatusOr<NodeBundle> ParseBundle(absl::string_view text);

// A line of a node's standard output. Several nodes may share one stream, hence the rank.
struct NodeLine {
  enum class Kind {
    kHello,   // "ADDRESS HOST": where it is; it waits for its bundle
    kOutput,  // a line of its service
    kEnd,     // the service has ended; how
  };
  int rank = 0;
  Kind kind = Kind::kOutput;
  std::string text;
};

std::string FormatNodeLine(const NodeLine& line);  // with its '\n'
// nullopt: it is somebody else's line, of the launcher itself.
std::optional<NodeLine> ParseNodeLine(absl::string_view line);

// A line of a node's standard input: the bundle of one rank. Where a launcher shows the same input
// to all, each takes its own.
std::string FormatBundleLine(int rank, const NodeBundle& bundle);  // with its '\n'
// nullopt: another rank's, or no such line. Else what ParseBundle says.
std::optional<absl::StatusOr<NodeBundle>> ParseBundleLine(int rank, absl::string_view line);
// Whose bundle a line is; nullopt: no such line.
std::optional<int> RankOfBundleLine(absl::string_view line);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_BUNDLE_H_
