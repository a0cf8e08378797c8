package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// strictSpec is the description of the API, closed: an answer with a field that is not described does not match it, though
// clients must not mind such a one.
var strictSpec = sync.OnceValues(func() (*openapi3.T, error) {
	text, err := server.OpenAPI("test")
	if err != nil {
		return nil, err
	}
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	for _, schema := range document["components"].(map[string]any)["schemas"].(map[string]any) {
		schema.(map[string]any)["additionalProperties"] = false
	}
	if text, err = json.Marshal(document); err != nil {
		return nil, err
	}
	return openapi3.NewLoader().LoadFromData(text)
})

// exchange is a call and its answer.
type exchange struct {
	method, target, body string
	header               []string
	answer               pawltest.Answer
}

// undescribed says where a call and its answer are not what the description says: the answer must be one of those described
// for the call, and a call that was carried out must be one that is described as valid. Without an answer only the call is
// looked at.
func undescribed(e exchange) error {
	doc, err := strictSpec()
	if err != nil {
		return err
	}
	request, err := http.NewRequest(e.method, "http://node"+e.target, strings.NewReader(e.body))
	if err != nil {
		return nil // what is no HTTP is not described
	}
	var code transport.Code
	if e.answer.Header.Get("Content-Type") == transport.TypeProblem {
		text, _ := e.answer.Field("code").(string)
		code = transport.Code(text)
	}
	item := doc.Paths.Value(request.URL.EscapedPath())
	switch {
	case item == nil && (code == transport.ErrNotFound || code == transport.ErrForbidden):
		return nil
	case item == nil:
		return fmt.Errorf("the path is not described, and answered was %d", e.answer.Status)
	case item.GetOperation(e.method) == nil && (code == transport.ErrMethodNotAllowed || code == transport.ErrForbidden):
		return nil
	case item.GetOperation(e.method) == nil:
		return fmt.Errorf("the method is not described, and answered was %d", e.answer.Status)
	}
	for i := 0; i+1 < len(e.header); i += 2 {
		request.Header.Add(e.header[i], e.header[i+1])
	}
	input := &openapi3filter.RequestValidationInput{
		Request: request, Route: &routers.Route{Spec: doc, Path: request.URL.Path, PathItem: item, Method: e.method, Operation: item.GetOperation(e.method)},
		QueryParams: request.URL.Query(), Options: &openapi3filter.Options{IncludeResponseStatus: true, SkipSettingDefaults: true},
	}
	if e.answer.Status == 0 {
		return validRequest(input, e.body)
	}
	response := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: e.answer.Status, Header: e.answer.Header,
		Body: io.NopCloser(bytes.NewReader(e.answer.Body)), Options: input.Options,
	}
	if e.answer.Header.Get("Content-Type") != transport.TypeEvents {
		if err := openapi3filter.ValidateResponse(context.Background(), response); err != nil {
			return fmt.Errorf("the answer is not as described: %w", err)
		}
	}
	switch code {
	case transport.ErrInvalid, transport.ErrTooLarge, transport.ErrUnsupportedMedia, transport.ErrForbidden:
		return nil
	}
	if err := validRequest(input, e.body); err != nil {
		return fmt.Errorf("the call was taken, and is not described as valid: %w", err)
	}
	return nil
}

// validRequest checks a request against the description.
func validRequest(input *openapi3filter.RequestValidationInput, body string) error {
	request := input.Request
	if request.Method == http.MethodPost {
		request.Header.Set("Content-Type", transport.TypeJSON) // what else is taken for it, the description says in words
	}
	if body == "" {
		request.Body, request.ContentLength = nil, 0
	}
	return openapi3filter.ValidateRequest(context.Background(), input)
}
