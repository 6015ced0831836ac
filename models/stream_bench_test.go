package models_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/relavium/relavium-serve/integration/fakemodel"
	"github.com/relavium/relavium-serve/models"
)

// BenchmarkStream is one turn of 1,000 tokens, the fake's own work included.
func BenchmarkStream(b *testing.B) {
	for _, v := range voices {
		b.Run(v.name, func(b *testing.B) {
			srv := httptest.NewServer(fakemodel.New(script(fakemodel.Turn{Tokens: 1000})))
			defer srv.Close()
			m, err := models.New(models.Options{
				Providers: map[string]models.Provider{v.provider: {BaseURL: fakemodel.URL(srv.URL, v.name), AllowLocalEndpoint: true}},
				Key:       func(context.Context, string) (string, error) { return testKey, nil },
			})
			if err != nil {
				b.Fatal(err)
			}
			defer m.CloseIdle()
			var d deltas
			for b.Loop() {
				d = deltas{}
				if _, err := m.Turn(b.Context(), v.request("x"), d.add); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "µs/token")
		})
	}
}
