FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/pawl ./cmd/pawl \
    && mkdir -p /out/data && touch /out/data/.keep

# Nothing but the static binary: it is its own health check.
FROM scratch
COPY --from=build /out/pawl /pawl
# A new volume takes over the owner of what it is mounted on.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
EXPOSE 7700 7800
ENTRYPOINT ["/pawl"]
CMD ["server"]
