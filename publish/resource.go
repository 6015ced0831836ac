package publish

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/transport"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	runScheme   = "relavium://runs/"
	outputsPart = "/outputs/"

	// maxResource bounds the text of one resource.
	maxResource = 4 << 20

	// maxURI bounds the URI that an error repeats, in bytes of JSON.
	maxURI = 4 << 10

	// codeResourceNotFound is how revisions before 2026-07-28 say that a
	// resource does not exist; that one says -32602.
	codeResourceNotFound = -32002
)

func outputURI(run, node string) string { return runScheme + run + outputsPart + node }

// registerResources names the resources as templates only: resources/list stays
// empty, so that no run is shown to anybody who does not know its id.
func (s *Server) registerResources(to *server.MCPServer) {
	to.AddResourceTemplate(
		mcp.NewResourceTemplate(runScheme+"{run}", "run",
			mcp.WithTemplateDescription("A workflow run: status, times, node states and error."),
			mcp.WithTemplateMIMEType("application/json")),
		s.readResource)
	to.AddResourceTemplate(
		mcp.NewResourceTemplate(runScheme+"{run}"+outputsPart+"{node}", "output",
			mcp.WithTemplateDescription("The output of one node of a workflow run: text, or JSON.")),
		s.readResource)
}

// readResource reads a run or an output of the caller's own principal and of a
// project that is served. Whatever else there is does not exist for the caller.
func (s *Server) readResource(ctx context.Context, req mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
	x := exchangeOf(ctx)
	run, node, isOutput := strings.Cut(strings.TrimPrefix(req.Params.URI, runScheme), outputsPart)
	r, err := s.engine.Run(ctx, run, x.caller.principal)
	if errors.Is(err, engine.ErrRunNotFound) || err == nil && !x.table.projects[r.Project] {
		return nil, x.notFound()
	}
	if err != nil {
		return nil, err
	}
	content := mcp.TextResourceContents{URI: req.Params.URI, MIMEType: "application/json"}
	if !isOutput {
		body, err := encode(viewOf(r))
		if err != nil {
			return nil, err
		}
		content.Text = string(body)
		return []mcp.ResourceContents{content}, nil
	}
	if !hasOutput(r, node) {
		return nil, x.notFound()
	}
	value, err := s.engine.Output(ctx, run, node, x.caller.principal)
	switch {
	case err != nil:
		return nil, err
	case value == nil:
		return nil, x.notFound()
	case len(value) > maxResource:
		x.fault = &transport.Error{Code: transport.CodeInvalidParams, Message: "the output is larger than a resource may be, which is 4 MiB"}
		return nil, x.fault
	}
	content.MIMEType, content.Text = mimeType(value), string(value)
	if value[0] == '"' {
		if err := json.Unmarshal(value, &content.Text); err != nil {
			return nil, err
		}
	}
	return []mcp.ResourceContents{content}, nil
}

// hasOutput reports whether the node completed.
func hasOutput(r *engine.Run, node string) bool {
	for i := range r.Nodes {
		if r.Nodes[i].ID == node {
			return r.Nodes[i].State == "completed"
		}
	}
	return false
}

// notFound sets and returns the fault of a resource that does not exist.
func (x *exchange) notFound() error {
	x.fault = &transport.Error{Code: codeResourceNotFound, Message: "resource not found", Data: x.unknownURI()}
	if x.caller.modern {
		x.fault.Code = transport.CodeInvalidParams
	}
	return x.fault
}

// unknownURI is the data of the fault: the URI as the caller sent it.
func (x *exchange) unknownURI() json.RawMessage {
	uri := x.request.Param("uri")
	if len(uri) == 0 || uri[0] != '"' || len(uri) > maxURI {
		return nil
	}
	return workflows.Object([]workflows.Member{{Key: "uri", Value: uri}})
}
