#include "tests/contract/device_group.h"

#include <algorithm>
#include <cmath>

#include "gpu_worker/engine/device/group.h"
#include "gtest/gtest.h"
#include "tests/contract/device_cases.h"
#include "training/graph/models.h"

namespace capstan::testing {
namespace {

using engine::GroupLane;
using training::LaneTree;
using training::Node;

constexpr double kScale = 0.03125;

// Rule R1, by the book.
std::vector<float> TreeSum(const LaneTree& tree, const Node& node,
                           const std::vector<std::vector<float>>& lanes) {
  if (node.lane_count == 1) return lanes[node.first_lane];
  const Node left = LaneTree::Left(node), right = LaneTree::Right(node);
  if (!tree.HasLanes(right)) return TreeSum(tree, left, lanes);
  std::vector<float> sum = TreeSum(tree, left, lanes);
  const std::vector<float> other = TreeSum(tree, right, lanes);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  return sum;
}

}  // namespace

void ExpectGroupSums(const std::vector<std::unique_ptr<engine::Device>>& devices,
                     const std::string& model, int64_t samples) {
  const LaneTree tree(5);
  const training::Graph graph = *training::MakeModel(model, 10, {1, 28, 28});
  std::vector<std::unique_ptr<Problem>> lanes;
  for (int lane = 0; lane < tree.lane_count(); ++lane) {
    // The last lane is smaller: another captured graph.
    lanes.push_back(std::make_unique<Problem>(graph, lane == 4 ? samples - 1 : samples, lane + 1));
  }
  const training::FlatLayout& layout = lanes[0]->layout;
  for (const bool deterministic : {true, false}) {
    for (const size_t count : {size_t{1}, devices.size()}) {
      SCOPED_TRACE(::testing::Message()
                   << model << " on " << count << " devices, " << (deterministic ? "D1" : "D0"));
      engine::PlanOptions options;
      options.max_batch = samples;
      options.deterministic = deterministic;
      std::vector<std::unique_ptr<engine::Plan>> plans;
      std::vector<engine::Plan*> members;
      for (size_t i = 0; i < count; ++i) {
        auto plan = devices[i]->Compile(graph, layout, options);
        ASSERT_TRUE(plan.ok()) << plan.status();
        plans.push_back(*std::move(plan));
        members.push_back(plans.back().get());
      }
      engine::GroupOptions together;
      together.deterministic = deterministic;
      together.timeout = absl::Seconds(20);
      together.buckets = {4096, 16384};
      auto group = devices[0]->MakeGroup(members, together);
      ASSERT_TRUE(group.ok()) << group.status();
      for (int step = 0; step < 4; ++step) {
        const std::vector<float>& weights = lanes[step]->weights;
        ASSERT_TRUE(plans[0]->LoadWeights(weights.data()).ok());
        std::vector<std::vector<float>> gradients(5, std::vector<float>(layout.total_floats()));
        std::vector<engine::LaneResult> results;
        std::vector<GroupLane> order;
        for (int32_t lane = 0; lane < 5; ++lane) {
          auto result = plans[0]->ComputeLane(lanes[lane]->batch(), kScale, gradients[lane].data());
          ASSERT_TRUE(result.ok()) << result.status();
          results.push_back(*result);
          order.push_back({static_cast<int>(lane % count), lane, lanes[lane]->batch()});
        }
        const std::vector<float> want = TreeSum(tree, tree.root(), gradients);
        std::vector<float> sum(layout.total_floats(), NAN);
        int64_t ready = 0;
        int buckets = 0;
        ASSERT_TRUE((*group)->LoadWeights(weights.data()).ok());
        const auto got =
            (*group)->ComputeLanes(tree, order, kScale, {sum.data()}, [&](size_t, int64_t floats) {
              EXPECT_GT(floats, ready);
              ready = floats;
              ++buckets;
            });
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(ready, layout.total_floats());
        EXPECT_GT(buckets, 1);
        for (size_t lane = 0; lane < results.size(); ++lane) {
          EXPECT_EQ((*got)[lane].correct, results[lane].correct);
          EXPECT_NEAR((*got)[lane].loss_sum, results[lane].loss_sum,
                      deterministic ? 0 : 1e-4 * results[lane].loss_sum);
        }
        double largest = 0;
        for (const float value : want) largest = std::max<double>(largest, std::fabs(value));
        for (size_t i = 0; i < want.size(); ++i) {
          if (deterministic) {
            ASSERT_EQ(sum[i], want[i]) << "float " << i << ", step " << step;
          } else {
            ASSERT_NEAR(sum[i], want[i], 1e-4 * largest) << "float " << i << ", step " << step;
          }
        }
      }
    }
  }
}

}  // namespace capstan::testing
