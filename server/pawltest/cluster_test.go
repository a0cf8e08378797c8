package pawltest_test

import (
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

func TestClusterGrantsAndReleases(t *testing.T) {
	pawltest.Run(t, pawltest.Options{Verbose: testing.Verbose()}, func(t *testing.T, c *pawltest.Cluster) {
		began := time.Now()
		for i := range c.Size() {
			a := c.MustPost(i, 200, "/v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000}`)
			session, token := a.Field("session").(string), a.Field("token").(float64)
			if token <= 0 {
				t.Fatalf("token %v", token)
			}
			held := c.MustPost((i+1)%3, 409, "/v1/acquire", `{"name":"a","owner":"you"}`)
			if held.Field("code") != "held" || held.Field("holders") == nil {
				t.Fatalf("answer %s", held.Body)
			}
			c.MustPost((i+2)%3, 200, "/v1/release", `{"session":"`+session+`","token":`+a.Header.Get("Pawl-Index")+`}`)
		}
		t.Log("took", time.Since(began))
	})
}
