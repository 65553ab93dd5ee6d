#include "compute-node/eval/report.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace cairn::eval {
namespace {

using OrderedJson = nlohmann::ordered_json;

double Ratio(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

OrderedJson StatisticsJson(const compute::HeadStatistics& statistics) {
  return {{"clusters", statistics.cluster_count},
          {"entries", statistics.entry_count},
          {"mean_size", Ratio(statistics.entry_count, statistics.cluster_count)},
          {"variance", statistics.variance},
          {"held", statistics.held_count},
          {"splits", statistics.split_count}};
}

// Layer and number of a KV head, which every list by head has.
OrderedJson HeadJson(const HeadName& name) {
  return {{"layer", name.layer}, {"kv_head", name.kv_head}};
}

OrderedJson HeadsJson(const PolicyResult& result) {
  OrderedJson list = OrderedJson::array();
  for (std::size_t i = 0; i < result.heads.size(); ++i) {
    const HeadAttention& attention = result.heads[i];
    OrderedJson head = HeadJson(result.head_names[i]);
    head["recall"] = attention.recall();
    head["recall_min"] = attention.recall_min;
    head["attended_mean"] = Ratio(attention.attended_sum, attention.step_count);
    head["attended_max"] = attention.attended_max;
    list.push_back(std::move(head));
  }
  return list;
}

OrderedJson IndexJson(const IndexSample& sample, std::span<const HeadName> names) {
  OrderedJson json = {{"token_count", sample.token_count}};
  json.update(StatisticsJson(TotalsOf(sample.statistics)));
  OrderedJson heads = OrderedJson::array();
  for (std::size_t i = 0; i < sample.statistics.heads.size(); ++i) {
    OrderedJson head = HeadJson(names[i]);
    head.update(StatisticsJson(sample.statistics.heads[i]));
    heads.push_back(std::move(head));
  }
  json["heads"] = std::move(heads);
  return json;
}

OrderedJson ReadAgainJson(const ReadAgain& again) {
  OrderedJson json = {{"clusters", again.cluster_count}};
  for (std::size_t i = 0; i < kAgainSteps.size(); ++i) {
    json["within"][fmt::format("{}", kAgainSteps[i])] = Ratio(again.within[i], again.cluster_count);
  }
  return json;
}

OrderedJson ClustersJson(const ClusterCounts& counts) {
  const ReadTogether& together = counts.together;
  const DelayedSplits& delay = counts.delay;
  const double steps = static_cast<double>(counts.step_count);
  return {{"read_entries_per_step", static_cast<double>(counts.read_entries) / steps},
          {"appended", counts.appended_count},
          {"read_again", ReadAgainJson(counts.changed)},
          {"read_again_all", ReadAgainJson(counts.all)},
          {"read_together",
           {{"clusters", together.cluster_count},
            {"share", Ratio(together.partner_count, together.cluster_count)},
            {"by_chance", together.cluster_count == 0
                              ? 0
                              : together.by_chance / static_cast<double>(together.cluster_count)}}},
          {"delay",
           {{"splits", delay.split_count},
            {"flagged", delay.flagged_count},
            {"unread", delay.unread_count},
            {"unread_entries_per_step", static_cast<double>(delay.unread_entries) / steps},
            {"forced", delay.forced_count},
            {"forced_entries_per_step", static_cast<double>(delay.forced_entries) / steps}}}};
}

// Sums and means over the heads, each of which counts the same.
OrderedJson ShiftJson(const ShiftSamples& samples) {
  OrderedJson json = {{"token_count", samples.token_count}};
  const double head_count = static_cast<double>(samples.heads.size());
  for (std::size_t i = 0; i < kPartitionCount; ++i) {
    std::int64_t clusters = 0;
    std::int64_t entries = 0;
    double squares = 0;
    double share = 0;
    double new_share = 0;
    for (const ShiftSample& head : samples.heads) {
      const PartitionMoments& moments = head.partitions[i];
      clusters += moments.cluster_count;
      entries += moments.entry_count;
      squares += moments.square_sum;
      if (head.total_variance == 0) continue;
      share += moments.variance() / head.total_variance / head_count;
      new_share += moments.new_variance() / head.total_variance / head_count;
    }
    json[std::string(kPartitionNames[i])] = {
        {"clusters", clusters},
        {"entries", entries},
        {"variance", entries == 0 ? 0 : squares / static_cast<double>(entries)},
        {"share", share},
        {"new_share", new_share}};
  }
  return json;
}

std::string DivergenceCells(const Divergence& divergence) {
  if (divergence.count() == 0) return fmt::format("{:>10}{:>10}{:>9}{:>8}", "-", "-", "-", "-");
  return fmt::format("{:>10.5f}{:>10.6f}{:>9.4f}{:>8.4f}", divergence.mean(),
                     divergence.Quantile(0.5), divergence.Quantile(0.99), divergence.same_best());
}

std::string IndexCells(const PolicyResult& result) {
  if (result.index.empty())
    return fmt::format("{:>10}{:>8}{:>10}{:>8}{:>6}", "-", "-", "-", "-", "-");
  const compute::HeadStatistics totals = TotalsOf(result.index.back().statistics);
  return fmt::format("{:>10}{:>8.2f}{:>10.3f}{:>8}{:>6}", totals.cluster_count,
                     Ratio(totals.entry_count, totals.cluster_count), totals.variance,
                     totals.split_count, totals.held_count);
}

}  // namespace

AttentionTotals TotalsOf(std::span<const HeadAttention> heads) {
  AttentionTotals totals;
  std::int64_t steps = 0;
  std::int64_t attended = 0;
  std::int64_t arrived = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    totals.recall += heads[i].recall() / static_cast<double>(heads.size());
    if (heads[i].recall() < heads[totals.lowest_head].recall()) totals.lowest_head = i;
    attended += heads[i].attended_sum;
    steps += heads[i].step_count;
    arrived += heads[i].arrived_sum;
    totals.attended_max = std::max(totals.attended_max, heads[i].attended_max);
    totals.over_count += heads[i].over_count;
    totals.over_max = std::max(totals.over_max, heads[i].over_max);
  }
  totals.attended_mean = Ratio(attended, steps);
  totals.fetched_entries = Ratio(arrived, heads.empty() ? 0 : heads[0].step_count);
  return totals;
}

compute::HeadStatistics TotalsOf(const compute::PolicyStatistics& statistics) {
  compute::HeadStatistics totals;
  double sum = 0;
  for (const compute::HeadStatistics& head : statistics.heads) {
    totals.cluster_count += head.cluster_count;
    totals.entry_count += head.entry_count;
    totals.held_count += head.held_count;
    totals.split_count += head.split_count;
    sum += head.variance * static_cast<double>(head.entry_count);
  }
  if (totals.entry_count > 0) totals.variance = sum / static_cast<double>(totals.entry_count);
  return totals;
}

OrderedJson ToJson(const PolicyResult& result) {
  const AttentionTotals totals = TotalsOf(result.heads);
  OrderedJson json = {{"policy", result.policy}};
  if (result.divergence.count() > 0) {
    json["kl"] = {{"mean", result.divergence.mean()},
                  {"median", result.divergence.Quantile(0.5)},
                  {"p99", result.divergence.Quantile(0.99)},
                  {"max", result.divergence.max()}};
    json["same_best"] = result.divergence.same_best();
  }
  json["recall"] = {{"mean", totals.recall},
                    {"lowest", result.heads[totals.lowest_head].recall()},
                    {"lowest_at", HeadJson(result.head_names[totals.lowest_head])},
                    {"steps", result.heads[0].recall_count}};
  json["attended"] = {{"mean", totals.attended_mean}, {"max", totals.attended_max}};
  if (!result.reads_everything) {
    json["attended"]["over_count"] = totals.over_count;
    json["attended"]["over_max"] = totals.over_max;
  }
  json["heads"] = HeadsJson(result);
  json["fetched_bytes_per_token"] =
      totals.fetched_entries * static_cast<double>(result.entry_bytes);
  json["index"] = OrderedJson::array();
  for (const IndexSample& sample : result.index) {
    json["index"].push_back(IndexJson(sample, result.head_names));
  }
  if (!result.clusters.has_value()) return json;
  json["clusters"] = ClustersJson(*result.clusters);
  json["shift"] = OrderedJson::array();
  for (const ShiftSamples& samples : result.shift) json["shift"].push_back(ShiftJson(samples));
  return json;
}

std::string Table(std::span<const PolicyResult> results) {
  std::string text = fmt::format(
      "{:<14}{:>10}{:>10}{:>9}{:>8}{:>8}{:>8}{:>9}{:>6}{:>7}{:>11}{:>10}{:>8}{:>10}{:>8}{:>6}\n",
      "policy", "KL mean", "median", "p99", "top-1", "recall", "lowest", "attended", "max", "over",
      "KiB/token", "clusters", "size", "variance", "splits", "held");
  for (const PolicyResult& result : results) {
    const AttentionTotals totals = TotalsOf(result.heads);
    text += fmt::format("{:<14}{}{:>8.4f}{:>8.4f}{:>9.1f}{:>6}{:>7}{:>11.1f}{}\n", result.policy,
                        DivergenceCells(result.divergence), totals.recall,
                        result.heads[totals.lowest_head].recall(), totals.attended_mean,
                        totals.attended_max,
                        result.reads_everything ? "-" : fmt::format("{}", totals.over_count),
                        totals.fetched_entries * static_cast<double>(result.entry_bytes) / 1024,
                        IndexCells(result));
  }
  return text;
}

std::string SelectionLine(const Selection& selection) {
  std::string line = fmt::format(
      R"({{"policy":"{}","position":{},"layer":{},"kv_head":{},"attended":[)", selection.policy,
      selection.position, selection.head.layer, selection.head.kv_head);
  const std::span<const std::int64_t> attended = selection.attended;
  for (std::size_t first = 0; first < attended.size();) {
    std::size_t end = first + 1;
    while (end < attended.size() && attended[end] == attended[end - 1] + 1) ++end;
    fmt::format_to(std::back_inserter(line), "{}[{},{}]", first == 0 ? "" : ",", attended[first],
                   end - first);
    first = end;
  }
  return line + "]}\n";
}

}  // namespace cairn::eval
