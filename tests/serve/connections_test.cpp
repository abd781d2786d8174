// Tests slow, half-closed, HTTP/1.0 and too many connections.
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>

#include "base/error.h"
#include "serve/test_server.h"

namespace thimble {
namespace {

ServerOptions with_limits(const HttpLimits& limits) {
  ServerOptions options;
  options.http.limits = limits;
  return options;
}

// Sends `piece` repeatedly until the server answers. Only a deadline for the complete request ends
// it.
HttpAnswer send_slowly(int port, std::string_view start, std::string_view piece) {
  HttpClient client(port, 0.02);
  client.send(start);
  const double end = seconds_now() + kClientSeconds;
  HttpAnswer answer;
  while (answer.status == 0 && seconds_now() < end) {
    client.send(piece);
    answer = client.read_answer();
  }
  return answer;
}

TEST(SlowClients, ExceedTheRequestDeadlineAndGet408) {
  TestServer server({.server = with_limits({.head_seconds = 0.3, .body_seconds = 0.3})});
  EXPECT_EQ(send_slowly(server.port(), "GET /health HTTP/1.1\r\nHost: x\r\nA: ", "a").status, 408);
  EXPECT_EQ(
      send_slowly(server.port(), "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", " ")
          .status,
      408);
}

TEST(SlowClients, DoNotBlockOtherClients) {
  TestServer server({.server = with_limits({.head_seconds = 10 * kClientSeconds})});
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(std::make_unique<HttpClient>(server.port()));
    slow.back()->send("POST /v1/completions HTTP/1.1\r\n");
  }
  EXPECT_EQ(server.complete(R"({"prompt":"hi","max_tokens":2})").status, 200);
  for (auto& client : slow) {
    client->send("\r\n");
    EXPECT_EQ(client->read_answer().status, 400) << "the request has no Host header";
  }
}

TEST(SlowClients, AreDisconnectedWhenIdle) {
  TestServer server({.server = with_limits({.idle_seconds = 0.3})});
  EXPECT_TRUE(HttpClient(server.port()).ends_here());
  bool answered = false;  // on a busy machine, the first request may exceed idle_seconds
  for (int attempt = 0; attempt < 20 && !answered; ++attempt) {
    HttpClient idle(server.port());
    idle.send(http_text("GET", "/health", ""));
    answered = idle.read_answer().status == 200;
    EXPECT_TRUE(!answered || idle.ends_here());
  }
  EXPECT_TRUE(answered);
}

TEST(HalfClosedSockets, GetAnAnswer) {
  TestServer server({.runs = false});
  HttpClient complete(server.port());
  complete.send(http_text("GET", "/health", ""));
  complete.half_close();
  EXPECT_EQ(complete.read_answer().status, 200);

  HttpClient cut(server.port());
  cut.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  cut.half_close();
  EXPECT_EQ(cut.read_answer().status, 400);

  HttpClient head(server.port());
  head.send("GET /hea");
  head.half_close();
  EXPECT_EQ(head.read_answer().status, 400);

  // A half-closed client counts as disconnected while its answer is being generated; it gets 499.
  HttpClient asks(server.port());
  asks.send(http_text("POST", "/v1/completions", R"({"prompt":"hi"})"));
  asks.half_close();
  const HttpAnswer answer = asks.read_answer();
  EXPECT_EQ(answer.status, 499) << answer;
}

TEST(Connections, SupportKeepAliveAndPipelining) {
  TestServer server;
  HttpClient client(server.port());
  client.send(http_text("GET", "/health", "") + http_text("POST", "/tokenize", R"({"content":"hi"})") +
              http_text("GET", "/nothing", "") + http_text("GET", "/health", "", "Connection: close\r\n"));
  EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_EQ(client.read_answer().json().at("tokens").size(), 2u);
  EXPECT_EQ(client.read_answer().status, 404);
  EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_TRUE(client.ends_here());
}

TEST(Connections, SupportChunkedBodiesAndExpect100) {
  TestServer server;
  const HttpAnswer chunks =
      ask(server.port(),
          "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
          "5\r\n{\"con\r\n6;x=y\r\ntent\":\r\n5\r\n\"hi\"}\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(chunks.status, 200) << chunks;
  HttpClient client(server.port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n");
  ASSERT_TRUE(client.wait_for("100 Continue"));
  client.send(R"({"content":"hi"})");
  EXPECT_EQ(client.read_answer().status, 200);
}

TEST(Connections, SkipOneEmptyLineBeforeARequest) {
  TestServer server;
  HttpClient client(server.port());
  for (int i = 0; i < 2; ++i) {
    client.send("\r\n" + http_text("GET", "/health", ""));
    EXPECT_EQ(client.read_answer().status, 200);
  }
  HttpClient ends(server.port());
  ends.send(http_text("GET", "/health", "") + "\r\n");
  ends.half_close();
  EXPECT_EQ(ends.read_answer().status, 200);
  EXPECT_TRUE(ends.ends_here());
}

bool connects(const char* address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo(address, std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const int client = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = connect(client, found->ai_addr, found->ai_addrlen) == 0;
  close(client);
  freeaddrinfo(found);
  return connected;
}

TEST(Connections, AreAcceptedOnEveryAddressOfTheHost) {
  const auto nothing = [](const auto&, auto&) {};
  HttpServer server({.host = "localhost"}, nothing, [](const HttpError&, const HttpRequest&, HttpReply&) {});
  server.start();
  EXPECT_TRUE(server.loopback());
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  ASSERT_EQ(getaddrinfo("localhost", nullptr, &hints, &found), 0);
  for (const addrinfo* each = found; each; each = each->ai_next) {
    const bool v6 = each->ai_family == AF_INET6;
    HttpServerOptions alone{.host = v6 ? "::1" : "127.0.0.1"};
    try {
      HttpServer exists(alone, nothing, [](const HttpError&, const HttpRequest&, HttpReply&) {});
    } catch (const Error&) {
      continue;  // a machine without IPv6
    }
    EXPECT_TRUE(connects(alone.host.c_str(), server.port())) << alone.host;
  }
  freeaddrinfo(found);
}

TEST(Connections, WithHttp10CloseAfterTheAnswer) {
  TestServer server;
  HttpClient client(server.port());
  client.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_TRUE(client.ends_here());

  const std::string body = R"({"prompt":"hi","max_tokens":3,"stream":true})";
  HttpClient stream(server.port());
  stream.send(
      fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  ASSERT_TRUE(stream.wait_for("data: [DONE]\n\n")) << stream.buffer();
  EXPECT_EQ(stream.buffer().find("Transfer-Encoding"), std::string::npos);
}

// Seconds until the server disconnects a client that reads 64 MiB with `read_some`; 0: it does not.
double seconds_until_disconnected(const HttpLimits& limits,
                                  const std::function<void(HttpClient&)>& read_some) {
  std::atomic<double> seconds = 0;
  HttpServer server(
      {.limits = limits},
      [&](const HttpRequest&, HttpReply& reply) {
        const double start = seconds_now();
        reply.send({.body = std::string(64 << 20, 'x')});
        EXPECT_TRUE(reply.gone());
        seconds = seconds_now() - start;
      },
      [](const HttpError&, const HttpRequest&, HttpReply&) {});
  server.start();
  HttpClient client(server.port());
  client.send(http_text("GET", "/", ""));
  wait_until([&] {
    read_some(client);
    return seconds > 0;
  });
  return seconds;
}

TEST(Connections, OfStalledReadersAreClosed) {
  EXPECT_GE(seconds_until_disconnected({.write_seconds = 0.3}, [](HttpClient&) {}), 0.3);
}

// The client reads at most 64 KiB at a time without long pauses, so a deadline per write would
// never expire. Only the deadline for the complete answer ends the connection.
TEST(Connections, OfSlowReadersAreClosed) {
  const auto read_some = [](HttpClient& client) {
    client.receive(seconds_now() + 0.01);
    usleep(3000);
  };
  EXPECT_GE(seconds_until_disconnected({.write_seconds = 0.5, .write_bytes_per_second = 1e9}, read_some),
            0.5);
}

TEST(Connections, OfStalledReadersDoNotDelayTheEnd) {
  HttpServer server(
      {.limits = {.write_seconds = 10 * kClientSeconds}},
      [&](const HttpRequest&, HttpReply& reply) { reply.send({.body = std::string(64 << 20, 'x')}); },
      [](const HttpError&, const HttpRequest&, HttpReply&) {});
  server.start();
  HttpClient client(server.port());
  client.send(http_text("GET", "/", ""));
  ASSERT_TRUE(client.wait_for("HTTP/1.1 200"));
  const double start = seconds_now();
  server.close(0.1);
  EXPECT_LT(seconds_now() - start, kClientSeconds);
}

TEST(Connections, BeyondTheLimitGet503) {
  ServerOptions options;
  options.http.max_connections = 3;
  TestServer server({.server = options});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->send(http_text("GET", "/health", ""));
    EXPECT_EQ(clients.back()->read_answer().status, 200);
  }
  const HttpAnswer refused = get(server.port(), "/health");
  EXPECT_EQ(refused.status, 503) << refused;
  EXPECT_TRUE(refused.has_header("Retry-After: 1"));
  clients.clear();
  EXPECT_TRUE(wait_until([&] { return get(server.port(), "/health").status == 200; }));
}

}  // namespace
}  // namespace thimble
