// What the cluster does, as `capstan top`, `node describe` and `shards` show it: pure text.
#ifndef CAPSTAN_CLIENT_TOP_TEXT_H_
#define CAPSTAN_CLIENT_TOP_TEXT_H_

#include <string>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct TopView {
  bool nodes = true;
  bool shards = true;
  bool jobs = true;
  int width = 0;  // as in TextTable
};

// One line of the cluster, then the tables of `view` that have rows. `jobs`: those that have not
// ended.
std::string TopText(const job::v1::ListNodesResponse& nodes, const std::vector<job::v1::Job>& jobs,
                    const TopView& view);
// The same as one object: "cluster", "nodes", "jobs" (shards are with them).
std::string TopJson(const job::v1::ListNodesResponse& nodes, const std::vector<job::v1::Job>& jobs);

// Where the shards of `jobs` lie, and what they do. `wide`: addresses, too.
std::string ShardsText(const std::vector<job::v1::Job>& jobs, bool wide, int width);
std::string ShardsJson(const std::vector<job::v1::Job>& jobs);

std::string NodeText(const job::v1::NodeInfo& node);

// "21.4/139.8 GiB", "188 MiB": powers of 1024.
std::string BytesText(double bytes);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TOP_TEXT_H_
