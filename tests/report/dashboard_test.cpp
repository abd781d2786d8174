#include "report/dashboard.h"

#include <fstream>

#include "base/clock.h"
#include "report/run_files.h"
#include "serve/http_client.h"
#include "support/message_of.h"

namespace thimble {
namespace {

class DashboardTest : public testing::Test {
 protected:
  DashboardTest() : run_(write_run(folder_, {.steps = 3, .ended = false})), dashboard_(run_, 0) {}

  std::string ask(const std::string& line, const std::string& host = "127.0.0.1") {
    HttpClient client(dashboard_.port());
    client.send(line + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    const HttpAnswer answer = client.read_answer();
    return std::to_string(answer.status) + " " + answer.head + answer.body;
  }

  TempFolder folder_;
  std::filesystem::path run_;
  Dashboard dashboard_;
};

TEST_F(DashboardTest, ShowsThePageToThisMachineAlone) {
  const std::string page = ask("GET /");
  EXPECT_TRUE(page.starts_with("200 "));
  EXPECT_NE(page.find("frame-ancestors 'none'"), std::string::npos);
  EXPECT_NE(page.find("data-live=\"yes\""), std::string::npos);
  EXPECT_TRUE(ask("GET /", "evil.example").starts_with("403 "));
  EXPECT_TRUE(dashboard_.address().starts_with("http://127.0.0.1:"));
}

TEST_F(DashboardTest, TakesNoOrders) {
  for (const char* line : {"POST /", "PUT /events", "DELETE /"})
    EXPECT_TRUE(ask(line).starts_with("405 ")) << line;
  for (const char* path : {"/metrics.jsonl", "/../run/config.toml", "/config.toml", "/report.html"})
    EXPECT_FALSE(ask(std::string("GET ") + path).starts_with("200 ")) << path;
}

TEST_F(DashboardTest, TellsWhatIsNewAndThatItEnded) {
  HttpClient client(dashboard_.port());
  client.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(client.wait_for("of 1,000</small>") || client.wait_for("steps</dt><dd>3"));
  std::ofstream(run_ / "metrics.jsonl", std::ios::app) << step_line(4, 1.25);
  ASSERT_TRUE(client.wait_for("steps</dt><dd>4"));
  EXPECT_EQ(client.buffer().find("\"ended\":true"), std::string::npos);
  dashboard_.end();
  EXPECT_TRUE(client.wait_for("\"ended\":true"));
}

// What it is sent is more than any socket holds for it: the server's threads do wait for it, for a while.
TEST(Dashboard, AClientThatDoesNotReadKeepsNobody) {
  constexpr std::size_t kText = 2 << 20;  // said at four steps
  const TempFolder folder;
  const auto run = write_run(folder, {.sample = std::string(kText, 'x'), .ended = false});
  Dashboard dashboard(run, 0);
  std::vector<std::unique_ptr<HttpClient>> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.push_back(std::make_unique<HttpClient>(dashboard.port(), kClientSeconds, 1 << 16));
    sleepers.back()->send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ASSERT_TRUE(sleepers.back()->wait_for("200 OK"));
  }
  HttpClient reader(dashboard.port());
  reader.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const HttpAnswer page = reader.read_answer();
  EXPECT_TRUE(page.whole);
  EXPECT_GT(page.body.size(), 4 * kText) << "others are served meanwhile";
  dashboard.end();  // returns although they still read nothing
  EXPECT_FALSE(HttpClient(dashboard.port()).connected());
  for (auto& sleeper : sleepers) {
    while (sleeper->receive(seconds_now() + 0.5)) continue;
    EXPECT_GT(sleeper->buffer().size(), 0u);
    EXPECT_LT(sleeper->buffer().size(), 4 * kText) << "given up in the middle: it did block";
  }
}

TEST(Dashboard, APortThatIsTakenIsAnError) {
  const TempFolder folder;
  const Dashboard first(folder / "a", 0);
  EXPECT_NE(message_of([&] {
              Dashboard(folder / "b", first.port());
            }).find("no dashboard: cannot listen on 127.0.0.1"),
            std::string::npos);
}

TEST(Dashboard, ARunThatDoesNotExistYetIsAnEmptyPage) {
  const TempFolder folder;
  Dashboard dashboard(folder / "later", 0);
  HttpClient client(dashboard.port());
  client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(client.wait_for("No step was made yet"));
}

}  // namespace
}  // namespace thimble
