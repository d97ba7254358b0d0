// What a node of `capstan launch` gets before it starts its service, and the lines that it prints.
//
// A bundle holds a private key and a token. It is passed through the node's standard input, an
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
  std::string address;           // the host by which others reach it; it listens there
  std::string coordinator;       // HOST:PORT; empty for the coordinator itself
  std::string folder;            // private, and the node removes it; empty: the node makes its own
  std::string authority;         // PEM
  std::string certificate;       // PEM
  std::string key;               // PEM
  std::string token;             // for its own calls; empty for the coordinator
  std::string tokens;            // tokens.json of those who may call it
  int workers_of_host = 1;       // workers that share the host's cores
  int nodes = 1;                 // shards and workers of the launch; no others will register
  std::string job_id;            // of the coordinator: the one job of the launch
  std::string state_dir;         // of the coordinator; empty: in `folder`
  std::vector<std::string> env;  // NAME=VALUE for the service
};

// JSON on one line, without a line feed. ParseBundle: InvalidArgument names the key, never a value.
std::string BundleText(const NodeBundle& bundle);
absl::StatusOr<NodeBundle> ParseBundle(absl::string_view text);

// A line of a node's standard output. It has the rank, because several nodes may share one stream.
struct NodeLine {
  enum class Kind {
    kHello,   // "ADDRESS HOST": where the node is; it waits for its bundle
    kOutput,  // a line of its service
    kEnd,     // the service has ended, and how
  };
  int rank = 0;
  Kind kind = Kind::kOutput;
  std::string text;
};

std::string FormatNodeLine(const NodeLine& line);  // with its '\n'
// nullopt: it is not a node's line, but for example one of the launcher itself.
std::optional<NodeLine> ParseNodeLine(absl::string_view line);

// A line of a node's standard input: the bundle of one rank. If a launcher gives all nodes the same
// input, each node takes only its own line.
std::string FormatBundleLine(int rank, const NodeBundle& bundle);  // with its '\n'
// nullopt: it is another rank's line, or no such line. Else the result of ParseBundle.
std::optional<absl::StatusOr<NodeBundle>> ParseBundleLine(int rank, absl::string_view line);
// The rank whose bundle the line holds; nullopt: no such line.
std::optional<int> RankOfBundleLine(absl::string_view line);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_BUNDLE_H_
