#include "planners/improve/exchange_knapsack.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

constexpr int64_t kFlips = 20000;

std::vector<int32_t> Chosen(const std::vector<ExchangeItem>& items, const std::vector<double>& room) {
  std::mt19937_64 random(1);
  return ChooseExchange(items, room, kFlips, &random).items;
}

using Items = std::vector<int32_t>;

// 3 s for 4 bytes and 2 s for 3: both in 7 bytes, the better one in 6.
TEST(TheRoomDecides) {
  const std::vector<ExchangeItem> items = {{3, {4}, {}}, {2, {3}, {}}};
  EXPECT_TRUE((Chosen(items, {7}) == Items{0, 1}));
  EXPECT_TRUE((Chosen(items, {6}) == Items{0}));
  EXPECT_TRUE((Chosen(items, {3}) == Items{1}));
  EXPECT_TRUE(Chosen(items, {2}).empty());
}

TEST(EveryWatchedStepHasRoom) {
  const std::vector<ExchangeItem> items = {{3, {4, 0}, {}}, {2, {0, 3}, {}}};
  EXPECT_TRUE((Chosen(items, {4, 3}) == Items{0, 1}));
  EXPECT_TRUE((Chosen(items, {4, 2}) == Items{0}));
}

TEST(WhatExcludesEachOtherIsNotTakenTogether) {
  const std::vector<ExchangeItem> items = {{3, {1}, {1, 2}}, {2, {1}, {0}}, {2, {1}, {0}}};
  EXPECT_TRUE((Chosen(items, {9}) == Items{1, 2}));
  EXPECT_TRUE((Chosen({items[0], {2, {1}, {0}}}, {9}) == Items{0}));
}

// 2 s buy 5 bytes, in which 3 s are saved; 4 bytes are not enough.
TEST(RoomIsBoughtWhereThatPays) {
  const ExchangeItem saves = {3, {5}, {}};
  EXPECT_TRUE((Chosen({saves, {-2, {-5}, {}}}, {0}) == Items{0, 1}));
  EXPECT_TRUE(Chosen({saves, {-2, {-4}, {}}}, {0}).empty());
  EXPECT_TRUE(Chosen({saves, {-4, {-5}, {}}}, {0}).empty());
}

// All sets, one by one.
double MostGain(const std::vector<ExchangeItem>& items, const std::vector<double>& room) {
  double best = 0;
  for (uint32_t set = 0; set < 1u << items.size(); ++set) {
    double gain = 0;
    bool is_allowed = true;
    std::vector<double> left = room;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!(set >> i & 1)) continue;
      gain += items[i].gain_s;
      for (size_t k = 0; k < room.size(); ++k) left[k] -= items[i].bytes[k];
      for (int32_t other : items[i].conflicts) is_allowed &= !(set >> other & 1);
    }
    for (double bytes : left) is_allowed &= bytes >= 0;
    if (is_allowed) best = std::max(best, gain);
  }
  return best;
}

TEST(KnapsackFindsTheBestOfAllSets) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<ExchangeItem> items(10);
    for (ExchangeItem& item : items) {
      const int sign = random() % 2 ? 1 : -1;
      item.gain_s = sign * static_cast<double>(1 + random() % 6);
      for (int k = 0; k < 3; ++k) item.bytes.push_back(sign * static_cast<double>(random() % 5));
    }
    for (int i = 0; i < 4; ++i) {
      const int32_t a = random() % 10, b = random() % 10;
      if (a == b) continue;
      items[a].conflicts.push_back(b);
      items[b].conflicts.push_back(a);
    }
    const std::vector<double> room = {1, 0, 2};
    EXPECT_EQ(ChooseExchange(items, room, kFlips, &random).gain_s, MostGain(items, room));
  }
  EXPECT_TRUE(ChooseExchange({}, {}, 100, &random).items.empty());
}

}  // namespace
}  // namespace coopjax
