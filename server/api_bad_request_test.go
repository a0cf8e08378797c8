package server_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// apiPaths are those of the API, by method.
var apiPaths = map[string][]string{
	"POST": slices.Sorted(maps.Keys(goodBodies)),
	"GET":  {"/v1/lock", "/v1/locks", "/v1/sessions", "/v1/cluster", "/livez", "/readyz"},
}

func TestAPIMethods(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		a.untouched("wrong methods", func() {
			for node := range a.Size() {
				for allowed, paths := range apiPaths {
					for _, path := range paths {
						for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", "Post", "ACQUIRE"} {
							if method == allowed {
								continue
							}
							answer := a.step(node, step{method + " " + path, `{"name":"n","owner":"o"}`, nil, 405, `{"code":"method_not_allowed"}`})
							if answer.Header.Get("Allow") != allowed {
								t.Errorf("%s %s: Allow %q, want %q", method, path, answer.Header.Get("Allow"), allowed)
							}
						}
					}
				}
			}
		})
	})
}

// An unknown path is 404 in the API's own words, and nothing that looks like a known one is led to it.
func TestAPIPaths(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		a.untouched("unknown paths", func() {
			for node := range a.Size() {
				for _, path := range []string{
					"//v1/acquire", "/v1//acquire", "/v1/acquire/", "/v1/acquire//", "/v1/../v1/acquire", "/v1/./acquire", "/./v1/acquire", "/v1/%2e%2e/v1/acquire", "/v1/%2E/acquire",
					"/v1%2Facquire", "/v1%2facquire", "/%76%31/acquire", "/v1/%61cquire", "/v1/acquire%2F", "/v1/acquire%00", "/v1/acquire%20", "/v1/acquire;x", "/V1/acquire", "/v1/Acquire", "/v1/ACQUIRE",
					"/v1", "/v1/", "/v2/acquire", "/acquire", "/v1/acquire/n", "/v1/lock/n", "/v1/locks/n", "/v1/session/", "/v1/cluster/", "/v1/cluster/transfer/", "/", "/nothing", "/livez/", "/readyz/x",
					"/peer/identity", "/peer/join", "/peer/promise", "/peer/term", "/peer/probe", "/peer/digest", "/debug/pprof/", "/favicon.ico", "/" + strings.Repeat("x", 4000), "/v1/😀", "/%ff",
				} {
					for _, method := range []string{"GET", "POST"} {
						body := ""
						if method == "POST" {
							body = `{"name":"free","owner":"o"}`
						}
						a.step(node, step{method + " " + path, body, nil, 404, `{"code":"not_found"}`})
					}
				}
			}
		})
	})
}

func TestAPIQueries(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		a.untouched("bad queries", func() {
			for node := range a.Size() {
				for _, c := range []struct{ target, field string }{
					{"/v1/lock", "name"}, {"/v1/lock?name=", "name"}, {"/v1/lock?name=n&name=n", "name"}, {"/v1/lock?name=n&name=m", "name"}, {"/v1/lock?NAME=n", "NAME"},
					{"/v1/lock?name=n&x=1", "x"}, {"/v1/lock?name=n&prefix=n", "prefix"}, {"/v1/lock?name=n&=1", ""},
					{"/v1/lock?name=%00", "name"}, {"/v1/lock?name=a%0ab", "name"}, {"/v1/lock?name=%7f", "name"}, {"/v1/lock?name=%c2%85", "name"},
					{"/v1/lock?name=%ff", "name"}, {"/v1/lock?name=%c0%af", "name"}, {"/v1/lock?name=%ed%a0%80", "name"},
					{"/v1/lock?name=" + strings.Repeat("n", 513), "name"},
					{"/v1/lock?name=%zz", ""}, {"/v1/lock?name=%", ""}, {"/v1/lock?name=n;m=1", ""},
					{"/v1/lock?name=n&consistency=", "consistency"}, {"/v1/lock?name=n&consistency=strong", "consistency"}, {"/v1/lock?name=n&consistency=Stale", "consistency"},
					{"/v1/lock?name=n&consistency=stale&consistency=stale", "consistency"},
					{"/v1/locks?limit=", "limit"}, {"/v1/locks?limit=0", "limit"}, {"/v1/locks?limit=-1", "limit"}, {"/v1/locks?limit=1001", "limit"}, {"/v1/locks?limit=1e3", "limit"},
					{"/v1/locks?limit=5.0", "limit"}, {"/v1/locks?limit=05", "limit"}, {"/v1/locks?limit=%2B5", "limit"}, {"/v1/locks?limit=+5", "limit"}, {"/v1/locks?limit=0x5", "limit"},
					{"/v1/locks?limit=ten", "limit"}, {"/v1/locks?limit=18446744073709551617", "limit"}, {"/v1/locks?limit=5&limit=5", "limit"},
					{"/v1/locks?held=", "held"}, {"/v1/locks?held=yes", "held"}, {"/v1/locks?held=1", "held"}, {"/v1/locks?held=T", "held"}, {"/v1/locks?held=TRUE", "held"}, {"/v1/locks?waiting=0", "waiting"}, {"/v1/locks?waiting=maybe", "waiting"},
					{"/v1/locks?sort=", "sort"}, {"/v1/locks?sort=Name", "sort"}, {"/v1/locks?sort=waiting", "sort"}, {"/v1/locks?sort=held&sort=held", "sort"}, {"/v1/sessions?sort=held", "sort"},
					{"/v1/locks?prefix=%ff", "prefix"}, {"/v1/locks?prefix=%00", "prefix"}, {"/v1/locks?prefix=" + strings.Repeat("n", 513), "prefix"},
					{"/v1/locks?after=%ff", "after"}, {"/v1/locks?after=" + strings.Repeat("n", 513), "after"}, {"/v1/locks?name=n", "name"},
					{"/v1/sessions?limit=0", "limit"}, {"/v1/sessions?after=x", "after"}, {"/v1/sessions?after=-1", "after"}, {"/v1/sessions?after=18446744073709551616", "after"}, {"/v1/sessions?after=01", "after"},
					{"/v1/sessions?after=18446744073709551615", "after"}, {"/v1/sessions?owner=%ff", "owner"}, {"/v1/sessions?owner=" + strings.Repeat("o", 257), "owner"}, {"/v1/sessions?held=true", "held"},
					{"/v1/cluster?x=1", "x"}, {"/livez?x", "x"}, {"/readyz?verbose=1", "verbose"},
				} {
					for _, stale := range []string{"", "consistency=stale"} {
						target := c.target
						if stale != "" && !strings.Contains(target, "consistency") {
							if strings.Contains(target, "?") {
								target += "&" + stale
							} else {
								target += "?" + stale
							}
						}
						want := invalidField(c.field)
						if c.field == "" {
							want = `{"code":"invalid"}`
						}
						a.step(node, step{"GET " + target, ``, nil, 400, want})
					}
				}
				for _, path := range apiPaths["POST"] {
					a.step(node, step{"POST " + path + "?name=n", object(goodBodies[path][0]), nil, 400, `{"code":"invalid","field":"name"}`})
					a.step(node, step{"POST " + path + "?consistency=stale", object(goodBodies[path][0]), nil, 400, `{"code":"invalid","field":"consistency"}`})
				}
			}
		})
	})
}

func TestAPIHeaders(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		good := map[string]string{}
		for path, bodies := range goodBodies {
			good[path] = object(bodies[0])
		}
		const media, invalid, forbidden = `{"code":"unsupported_media"}`, `{"code":"invalid","field":"Idempotency-Key"}`, `{"code":"forbidden"}`
		a.untouched("bad headers", func() {
			for node := range a.Size() {
				for _, path := range apiPaths["POST"] {
					for _, c := range []struct {
						status int
						want   string
						header []string
					}{
						{415, media, []string{"Content-Type", "text/plain"}}, {415, media, []string{"Content-Type", "text/json"}}, {415, media, []string{"Content-Type", "application/xml"}},
						{415, media, []string{"Content-Type", "multipart/form-data; boundary=x"}}, {415, media, []string{"Content-Type", "application/problem+json"}},
						{415, media, []string{"Content-Type", "application/json; charset=utf-16"}}, {415, media, []string{"Content-Type", "application/json; charset=latin1"}},
						{415, media, []string{"Content-Type", "application/jsonx"}}, {415, media, []string{"Content-Type", "json"}}, {415, media, []string{"Content-Type", ";;"}},
						{415, media, []string{"Content-Type", "application/json, text/plain"}}, {415, media, []string{"Content-Type", "application/json", "Content-Type", "text/plain"}},
						{415, media, []string{"Content-Encoding", "gzip"}}, {415, media, []string{"Content-Encoding", "br"}}, {415, media, []string{"Content-Encoding", "identity, gzip"}},
						{400, invalid, []string{"Idempotency-Key", ""}}, {400, invalid, []string{"Idempotency-Key", strings.Repeat("k", 257)}}, {400, invalid, []string{"Idempotency-Key", "a b"}},
						{400, invalid, []string{"Idempotency-Key", "ä"}}, {400, invalid, []string{"Idempotency-Key", "k\tk"}}, {400, invalid, []string{"Idempotency-Key", "k", "Idempotency-Key", "k"}},
						{400, invalid, []string{"Idempotency-Key", "k", "Idempotency-Key", "l"}}, {400, invalid, []string{"Idempotency-Key", "", "Idempotency-Key", "k"}},
						{403, forbidden, []string{"Origin", "http://evil.example"}}, {403, forbidden, []string{"Origin", "null"}}, {403, forbidden, []string{"Origin", "https://n1.evil.example:7700"}},
						{403, forbidden, []string{"Origin", "http://n1:7701"}}, {403, forbidden, []string{"Origin", "http://"}}, {403, forbidden, []string{"Origin", "%"}},
						{403, forbidden, []string{"Sec-Fetch-Site", "cross-site"}}, {403, forbidden, []string{"Sec-Fetch-Site", "same-site"}}, {403, forbidden, []string{"Sec-Fetch-Site", "anything"}},
					} {
						a.step(node, step{"POST " + path, good[path], c.header, c.status, c.want})
					}
				}
				for path, body := range map[string]string{
					"/v1/acquire": object(goodBodies["/v1/acquire"][1]), "/v1/cancel": good["/v1/cancel"], "/v1/session": good["/v1/session"], "/v1/session/close": good["/v1/session/close"],
					"/v1/release": good["/v1/release"], "/v1/renew": good["/v1/renew"], "/v1/raise": good["/v1/raise"], "/v1/convert": good["/v1/convert"], "/v1/check": good["/v1/check"], "/v1/value": good["/v1/value"], "/v1/force-release": good["/v1/force-release"], "/v1/cluster/transfer": good["/v1/cluster/transfer"], "/v1/cluster/remove": good["/v1/cluster/remove"],
				} {
					a.step(node, step{"POST " + path, body, []string{"Idempotency-Key", "a-good-key"}, 400, invalid})
				}
				for _, path := range []string{"/v1/lock?name=n", "/v1/locks", "/v1/sessions", "/v1/cluster", "/livez", "/readyz", "/nothing"} {
					a.step(node, step{"GET " + path, ``, []string{"Origin", "http://evil.example"}, 403, forbidden})
					a.step(node, step{"GET " + path, ``, []string{"Sec-Fetch-Site", "cross-site"}, 403, forbidden})
				}
			}
		})
	})
}

// What browsers of the node's own pages, plain curl and other honest callers send is taken.
func TestAPIHonestHeaders(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		const held = `{"code":"held","queue_length":0,"holders":[{"owner":"holder","mode":"exclusive","token":"<token>","held_ms":"<number>","remaining_ms":"<number>","session":"<short>"}]}`
		a.untouched("honest headers", func() {
			for node := range a.Size() {
				for _, header := range [][]string{
					nil, {"Content-Type", "application/json"}, {"Content-Type", "application/json; charset=utf-8"}, {"Content-Type", `Application/JSON;Charset="UTF-8"`},
					{"Content-Type", "application/x-www-form-urlencoded"}, {"Origin", a.URL(node)}, {"Origin", a.URL(node), "Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"},
					{"Accept", "text/html"}, {"Pawl-Forwarded", "n1"}, {"Pawl-Forwarded", "nobody"}, {"Traceparent", "garbage"}, {"Expect", "100-continue"}, {"X-Forwarded-For", "1.2.3.4"},
					{"Authorization", "Bearer x"}, {"Cookie", "a=b"}, {"Connection", "close"},
				} {
					a.step(node, step{"POST /v1/acquire", `{"name":"n","owner":"o"}`, header, 409, held})
				}
			}
		})
		for node := range a.Size() {
			for i, text := range []string{"!", strings.Repeat("~", 255), `"quoted"`} {
				name, key := fmt.Sprintf("k%d", i), []string{"Idempotency-Key", text + fmt.Sprint(node)}
				a.step(node, step{"POST /v1/acquire", `{"name":"` + name + `","owner":"o"}`, key, 200, `{"granted":true,"session":"<session>","token":"<token>",
					"locks":[{"name":"` + name + `","mode":"exclusive","token":"<token>"}],"ttl_ms":15000,"lease_ms":15000,"owner":"o","replayed":false}`})
				a.step(node, step{"POST /v1/cancel", ``, key, 200, `{"state":"released"}`})
			}
		}
	})
}
